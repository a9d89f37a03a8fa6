"""Build sequences, pairs or single, from documents."""
