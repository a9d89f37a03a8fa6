"""Define what a model learns: one file an objective, one line in registry.py."""
