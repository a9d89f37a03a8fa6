"""Record what happens in a run: metrics, events, the terminal, W&B."""
