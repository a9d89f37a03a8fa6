"""Provide LAMB's two passes as fused kernels, beside the plain torch that does the same."""
