"""A line of metrics.jsonl in; the point that W&B draws out: numbers, and bars that become rows of a heat map.

W&B draws a histogram that is logged step after step as a heat map: the steps go right, the bins up, the count is the
colour. Bars whose bins are layers or ranks therefore make the picture "layer by step" or "rank by step".
"""

import re
from typing import Any, NamedTuple

import numpy as np

from pretrain.monitor import TRUST, TRUST_PREFIX

TRUST_SPREAD, TRUST_BY_LAYER = "trust_ratios", "trust_ratio_by_layer"
BY_RANK = {"step_ms_by_rank": "step_ms/rank_", "forward_ms_by_rank": "forward_ms/rank_"}
"""Fields with a number a rank, and what the curve of one rank is called."""
MOST_CURVES = 16
"""Ranks up to which each has a curve of its own beside the heat map."""
MOST_BINS = 512
"""Of a histogram on W&B."""
_LAYER = re.compile(r"\blayers\.(\d+)\.")


class Bars(NamedTuple):
    """A histogram that is given: the height of each bin, and the edges, one more."""

    heights: list[float]
    edges: list[float]


def point_of(line: dict[str, Any]) -> dict[str, float | Bars]:
    """What W&B gets of a line: its numbers, and of numbers by rank or by layer the bars."""
    point: dict[str, float | Bars] = {k: v for k, v in line.items() if isinstance(v, int | float)}
    for field, curve in BY_RANK.items():
        if values := line.get(field):
            point[field] = by_rank(values)
            if len(values) <= MOST_CURVES:
                point |= {f"{curve}{rank}": value for rank, value in enumerate(values)}
    if line.get("kind") == TRUST:
        ratios = {key: value for key, value in line.items() if key.startswith(TRUST_PREFIX)}
        point[TRUST_SPREAD] = _spread(list(ratios.values()))
        point[TRUST_BY_LAYER] = by_layer(ratios)
    return point


def by_rank(values: list[float]) -> Bars:
    """Bin r is rank r; where there are more ranks than bins, a bin is the slowest of some neighbours."""
    together = -(-len(values) // MOST_BINS)
    heights = [max(values[start : start + together]) for start in range(0, len(values), together)]
    return Bars(heights, [float(bin * together) for bin in range(len(heights) + 1)])


def by_layer(ratios: dict[str, float]) -> Bars:
    """Mean trust ratio of the tensors of each layer: bin -1 is the embeddings, bin i layer i, the last the heads."""
    layers: dict[int, list[float]] = {}
    numbers = {name: int(found[1]) if (found := _LAYER.search(name)) else None for name in ratios}
    last = max((number for number in numbers.values() if number is not None), default=-1)
    for name, number in numbers.items():
        outside = -1 if ".embeddings." in name else last + 1
        layers.setdefault(outside if number is None else number, []).append(ratios[name])
    heights = [float(np.mean(layers[row])) if row in layers else 0.0 for row in range(-1, last + 2)]
    return Bars(heights, [float(row) for row in range(-1, last + 3)])


def _spread(values: list[float]) -> Bars:
    heights, edges = np.histogram(values, bins=64)
    return Bars(heights.tolist(), edges.tolist())
