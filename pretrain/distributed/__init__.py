"""Connect the ranks, and run a model under DeepSpeed ZeRO."""
