"""Read recipes and overrides, and list and complete settings."""
