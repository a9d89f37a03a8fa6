"""Start a run from a Hugging Face folder: read its settings, check it, and change its weights to the run's."""
