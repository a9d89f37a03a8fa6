"""Mask sequences: choose which tokens are predicted, and what replaces them."""
