"""Draw trust ratios by layer over steps, darker for higher ratios.

Each row is a layer: the geometric mean over its tensors, since ratios are factors. Colours are on a logarithmic scale
with a limited number of shades, and each shade is one path, so that the picture stays small.
"""

import json
import math
from html import escape

import numpy as np
from numpy.typing import NDArray

from pretrain.report.html.charts.scales import text, ticks
from pretrain.report.html.record import Points, RunRecord
from pretrain.run.metrics_log import layer_of

SHADES, COLUMNS, ROWS = 10, 72, 64


def trust_picture(run: RunRecord) -> str:
    """Return the heat map as an HTML figure; if the ratios were not logged, how to log them."""
    if not run.trust:
        return _missing() if "trust_ratio" in run.train else ""
    rows = by_layer(run.trust)
    edges, cells = binned(rows)
    finite = cells[np.isfinite(cells)]
    if not len(finite):
        return _missing()
    low, high = float(finite.min()), float(finite.max())
    return (
        '<figure class="chart broad" id="trust-map"><figcaption><h3>Trust ratio of each layer</h3>'
        "<p>LAMB scales the update of each tensor by its trust ratio. A row is a layer (the geometric mean of its "
        "tensors), a column a stretch of steps; stronger colour is a larger ratio, in powers.</p></figcaption>"
        f"{_key(low, high)}{_plot(list(rows), edges, cells, low, high)}{_table(rows)}</figure>"
    )


def by_layer(trust: dict[str, Points]) -> dict[str, Points]:
    """Return row name -> geometric mean of its tensors' ratios at each step: embeddings, layers from the first, heads.
    With very many layers, neighbours share a row."""
    layers = {name: layer_of(name) for name in trust}
    last = max((layer for layer in layers.values() if layer is not None), default=0)
    width = max(1, math.ceil(last / ROWS))
    groups: dict[int, list[Points]] = {}  # by the row's first layer; the heads come last
    for name, points in trust.items():
        layer = layers[name]
        first = last + 1 if layer is None else layer and (layer - 1) // width * width + 1
        groups.setdefault(first, []).append(points)
    return {_row_name(first, last, width): _mean(groups[first]) for first in sorted(groups)}


def _row_name(first: int, last: int, width: int) -> str:
    if first == 0 or first > last:
        return "heads" if first else "embeddings"
    return f"layer {first}" if width == 1 else f"layers {first} to {first + width - 1}"


def _mean(group: list[Points]) -> Points:
    steps = np.unique(np.concatenate([points.steps for points in group]))
    sums, counts = np.zeros(len(steps)), np.zeros(len(steps))
    for points in group:
        good = np.isfinite(points.values) & (points.values > 0)
        at = np.searchsorted(steps, points.steps[good])
        sums[at] += np.log(points.values[good])
        counts[at] += 1
    with np.errstate(invalid="ignore", divide="ignore"):
        return Points(steps, np.exp(np.where(counts > 0, sums / counts, np.nan)))


def binned(rows: dict[str, Points]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the edges of step bins, and the mean ratio of each row in each bin (NaN if none was logged)."""
    steps = np.unique(np.concatenate([points.steps for points in rows.values()]))
    count = min(COLUMNS, len(steps))
    firsts = steps[np.arange(count) * len(steps) // count]
    gap = (steps[-1] - steps[0]) / max(1, len(steps) - 1) or 1.0
    edges = np.append(firsts, steps[-1] + gap)
    cells = np.full((len(rows), count), np.nan)
    for row, points in enumerate(rows.values()):
        column = np.searchsorted(edges, points.steps, side="right") - 1
        good = np.isfinite(points.values)
        sums = np.bincount(column[good], np.log(points.values[good]), count)
        counts = np.bincount(column[good], minlength=count)
        cells[row, counts > 0] = np.exp(sums[counts > 0] / counts[counts > 0])
    return edges, cells


def _shade(value: float, low: float, high: float) -> int:
    if not high > low:
        return SHADES - 1
    return min(SHADES - 1, int(SHADES * math.log(value / low) / math.log(high / low)))


def _plot(
    names: list[str], edges: NDArray[np.float64], cells: NDArray[np.float64], low: float, high: float
) -> str:
    start, end = float(edges[0]), float(edges[-1])
    places = 1000 * (edges - start) / (end - start)
    height = 1000 / len(names)
    paths = [""] * SHADES
    for row, values in enumerate(cells.tolist()):
        for column, value in enumerate(values):
            if math.isfinite(value):
                left, right = places[column], places[column + 1]
                paths[_shade(value, low, high)] += (
                    f"M{left:.1f} {row * height:.1f}H{right:.1f}v{height:.1f}H{left:.1f}z"
                )
    drawn = "".join(f'<path class="h{i}" d="{path}"/>' for i, path in enumerate(paths) if path)
    every = math.ceil(len(names) / 16)
    labels = "".join(
        f'<span style="top:{(i + 0.5) * height / 10:.2f}%">{escape(name)}</span>'
        for i, name in enumerate(names)
        if i % every == 0
    )
    columns = "".join(
        f'<span style="left:{100 * (t - start) / (end - start):.2f}%">{text(t)}</span>'
        for t in ticks(start, end, 5)
        if t == int(t)
    )
    grid = {
        "names": names,
        "edges": [int(edge) for edge in edges],
        "cells": [
            [float(f"{v:.3g}") if math.isfinite(v) else None for v in values] for values in cells.tolist()
        ],
    }
    words = f"Ratios from {text(low)} to {text(high)}, over steps {text(start)} to {text(end)}."
    return (
        f'<div class="plot heat" style="--rows:{len(names)}" tabindex="0" role="group" '
        'aria-label="Trust ratio of each layer: arrow keys read the values" '
        f'data-grid="{escape(json.dumps(grid, separators=(",", ":")))}">'
        f'<div class="rows" aria-hidden="true">{labels}</div>'
        '<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" role="img" aria-labelledby="trust-map-t trust-map-d">'
        f'<title id="trust-map-t">Trust ratio of each layer over steps</title><desc id="trust-map-d">{words}</desc>'
        f'{drawn}</svg><div class="columns" aria-hidden="true">{columns}</div><div class="tip" hidden></div></div>'
    )


def _key(low: float, high: float) -> str:
    shades = "".join(f'<i class="k{i}"></i>' for i in range(SHADES))
    return (
        f'<p class="shades"><b>{text(low)}</b><span aria-hidden="true">{shades}</span><b>{text(high)}</b></p>'
    )


def _table(rows: dict[str, Points]) -> str:
    body = ""
    for name, points in rows.items():
        values = points.values[np.isfinite(points.values)]
        told = [values[0], values.min(), np.median(values), values.max(), values[-1]] if len(values) else []
        cells = "".join(f"<td>{text(float(value))}</td>" for value in told)
        body += f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>'
    head = "".join(
        f'<th scope="col">{name}</th>' for name in ("layer", "first", "lowest", "median", "highest", "last")
    )
    return (
        f'<details><summary>Numbers</summary><div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div></details>"
    )


def _missing() -> str:
    return (
        '<figure class="chart" id="trust-map"><figcaption><h3>Trust ratio of each layer</h3></figcaption>'
        "<p>Not logged. With <code>monitor.trust_ratios_every=100</code> a run keeps them, and they are drawn "
        "here, layer by layer.</p></figure>"
    )
