"""Train encoders from shards to checkpoints and Hugging Face folders. Imports data_pipeline, never launch."""
