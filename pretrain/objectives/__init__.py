"""Define what a model learns: one file per objective, one line in registry.py."""
