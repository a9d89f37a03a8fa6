"""Examine this machine: what is missing, and what to do about it."""
