"""The trainer: shards in, checkpoints and Hugging Face folders out. Imports data_pipeline, never launch."""
