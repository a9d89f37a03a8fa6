"""Build sequences from documents: pairs and single sequences."""
