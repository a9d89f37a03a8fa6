"""Mask sequences: which tokens are predicted, and what replaces them."""
