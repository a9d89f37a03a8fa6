"""Evaluate models, beside baselines that need no learning."""
