"""Check the examples of a folder of shards, and show them."""
