"""Fine-tune an encoder and score it: one file per kind of task."""
