"""Compute optimizer updates that do not depend on how DeepSpeed shards parameters, and learning-rate schedules."""
