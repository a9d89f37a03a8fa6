"""Load shards into packed micro-batches, in an order that depends on nothing but the seed."""
