"""Counts of held-out examples in; what a model scores that has learnt nothing but how often things are, out."""

from collections.abc import Mapping
from typing import Any


def majority_share(held_out: Mapping[str, Any]) -> float | None:
    """Accuracy on the pairs of always the same answer; None without pairs."""
    counts = [int(held_out.get(name, 0)) for name in ("pairs_is_next", "pairs_random")]
    return max(counts) / sum(counts) if sum(counts) else None
