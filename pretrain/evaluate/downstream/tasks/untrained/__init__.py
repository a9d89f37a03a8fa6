"""Score an encoder as it is, by its head of pretraining: one file per task."""
