"""Export: weights by our names in, a Hugging Face folder out, and back."""
