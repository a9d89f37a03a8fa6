"""Define what a model learns: a module for each kind of objective, and a line in registry.py for each objective."""
