"""Write and read shards: tars of blocks, and index.json."""
