"""Save and load sharded checkpoints at any world size."""
