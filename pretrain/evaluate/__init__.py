"""Score encoders on tasks, beside baselines that need no learning: what `maskmill evaluate` does."""
