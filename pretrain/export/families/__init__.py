"""Convert weights to a Hugging Face family and back: one file per family."""
