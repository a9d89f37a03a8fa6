"""Exported models in; what they can do out."""
