"""Score any Hugging Face encoder on tasks: what `maskmill evaluate` does."""
