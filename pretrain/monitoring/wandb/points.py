"""Convert a line of metrics.jsonl to the point that W&B draws: numbers, and bars that become rows of a heat map.

W&B draws a histogram that is logged step after step as a heat map: the steps go right, the bins up, the count is the
colour. Bars whose bins are layers or ranks therefore make the picture "layer by step" or "rank by step".
"""

import math
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from pretrain.run.metrics_file import TRUST, TRUST_PREFIX, layer_of

TRUST_SPREAD, TRUST_BY_LAYER = "trust_ratios", "trust_ratio_by_layer"
BY_RANK = {"step_ms_by_rank": "step_ms/rank_", "forward_ms_by_rank": "forward_ms/rank_"}
"""Fields with a number a rank, and what the curve of one rank is called."""
MOST_CURVES = 16
"""Ranks up to which each has a curve of its own beside the heat map."""
MOST_BINS = 512
"""Of a histogram on W&B."""


class Bars(NamedTuple):
    """A histogram that is given: the height of each bin, and the edges, one more."""

    heights: list[float]
    edges: list[float]


def point_of(line: dict[str, Any]) -> dict[str, float | Bars]:
    """Say what W&B gets of a line: its numbers, and of numbers by rank or by layer the bars."""
    point: dict[str, float | Bars] = {k: v for k, v in line.items() if isinstance(v, int | float)}
    for field, curve in BY_RANK.items():
        if values := line.get(field):
            point[field] = by_rank(values)
            if len(values) <= MOST_CURVES:
                point |= {f"{curve}{rank}": value for rank, value in enumerate(values)}
    if line.get("kind") == TRUST:
        ratios = {
            key: float(value)
            for key, value in line.items()
            if key.startswith(TRUST_PREFIX) and isinstance(value, int | float)
        }
        point[TRUST_SPREAD] = _spread(list(ratios.values()))
        point[TRUST_BY_LAYER] = by_layer(ratios)
    return point


def by_rank(values: list[float]) -> Bars:
    """Bin r is rank r; where there are more ranks than bins, a bin is the slowest of some neighbours."""
    together = -(-len(values) // MOST_BINS)
    heights = [max(values[start : start + together]) for start in range(0, len(values), together)]
    return Bars(heights, [float(bin * together) for bin in range(len(heights) + 1)])


def by_layer(ratios: dict[str, float]) -> Bars:
    """Geometric mean, since ratios are factors, over the tensors of each layer: bin 0 is the embeddings, bin i the ith
    layer, the last the heads."""
    logs: dict[int | None, list[float]] = {}
    for name, ratio in ratios.items():
        if ratio > 0:
            logs.setdefault(layer_of(name), []).append(math.log(ratio))
    last = max((row for row in map(layer_of, ratios) if row is not None), default=0)
    rows: list[int | None] = [*range(last + 1), None]
    heights = [math.exp(fmean(logs[row])) if row in logs else 0.0 for row in rows]
    return Bars(heights, [float(edge) for edge in range(len(rows) + 1)])


def _spread(values: list[float]) -> Bars:
    heights, edges = np.histogram(values, bins=64)
    return Bars(heights.tolist(), edges.tolist())
