"""Give held-out examples of prepared shards to encoders, and watch their attention."""
