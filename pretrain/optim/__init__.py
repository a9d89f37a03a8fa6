"""Optimize with the same updates however DeepSpeed cuts the parameters; and learning-rate schedules."""
