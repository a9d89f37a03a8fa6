"""Provide what the training loop uses: batches, losses, resuming, validation."""
