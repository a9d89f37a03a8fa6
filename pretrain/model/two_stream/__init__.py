"""Encode with two streams, relative positions and a memory, as XLNet does: plan, attention, encoder."""
