"""Fine-tune an encoder: the loop of all tasks, and the choice between candidates."""
