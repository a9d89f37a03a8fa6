"""Fused kernels, each beside the plain torch that does the same: lamb.py (torch), lamb_triton.py (Triton)."""
