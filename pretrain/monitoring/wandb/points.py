"""Convert a line of metrics.jsonl to a W&B point: numbers, and histograms that form the rows of a heat map.

W&B draws a histogram that is logged at every step as a heat map: steps on the x-axis, bins on the y-axis, counts as
colour. Histograms whose bins are layers or ranks therefore show "layer by step" or "rank by step".
"""

import math
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from pretrain.run.metrics_log import TRUST, TRUST_PREFIX, layer_of

TRUST_SPREAD, TRUST_BY_LAYER = "trust_ratios", "trust_ratio_by_layer"
BY_RANK = {"step_ms_by_rank": "step_ms/rank_", "forward_ms_by_rank": "forward_ms/rank_"}
"""Fields with one number per rank, and the name of the curve of one rank."""
MOST_CURVES = 16
"""Maximum number of ranks with a curve each, beside the heat map."""
MOST_BINS = 512
"""Maximum number of bins in a W&B histogram."""


class Bars(NamedTuple):
    """A given histogram: the height of each bin, and the edges, one more than bins."""

    heights: list[float]
    edges: list[float]


def point_of(line: dict[str, Any]) -> dict[str, float | Bars]:
    """Convert a line to its W&B point: its numbers, and histograms of numbers by rank or by layer."""
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
    """Return a histogram whose bin r is rank r; with more ranks than bins, a bin is the slowest of several
    neighbours."""
    together = -(-len(values) // MOST_BINS)
    heights = [max(values[start : start + together]) for start in range(0, len(values), together)]
    return Bars(heights, [float(bin * together) for bin in range(len(heights) + 1)])


def by_layer(ratios: dict[str, float]) -> Bars:
    """Return the geometric mean, since ratios are factors, over the tensors of each layer: bin 0 is the embeddings, bin
    i the ith layer, the last the heads."""
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
