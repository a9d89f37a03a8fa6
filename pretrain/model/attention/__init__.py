"""Attend within each example of a packed micro-batch. Read in this order: attend, tile_plan, tiles, cpu."""
