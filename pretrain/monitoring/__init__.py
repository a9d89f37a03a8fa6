"""Record what happens in a run: metrics, events, terminal output, W&B."""
