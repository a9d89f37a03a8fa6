"""Export weights to a Hugging Face folder, and import them from one."""
