"""Compute losses of a vocabulary projection a few rows at a time."""
