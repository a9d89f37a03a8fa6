"""Optimizers that give the same update however DeepSpeed cuts the parameters, and learning-rate schedules."""
