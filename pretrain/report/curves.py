"""Draw what a run logged over its steps: the charts of run/metrics.py, scores of train.probe, trust ratios by layer.

Metrics that the run did not log are left out.
"""

import json
import math
from html import escape

import numpy as np
from numpy.typing import NDArray

from pretrain.report.charts import (
    PHASE,
    RESUMED,
    SKIPPED,
    Level,
    Mark,
    Scale,
    Series,
    draw,
    drawing,
    figure,
    labels,
    numbers,
    text,
)
from pretrain.report.record import Points, RunRecord, last
from pretrain.run.files import number
from pretrain.run.metrics import (
    CHARTS,
    HELD_OUT,
    LEARNING,
    OPTIMIZER,
    SPEED,
    THROUGHPUT,
    Chart,
    Curve,
    learning_charts,
    percent,
)
from pretrain.run.metrics_log import PROBE_PREFIX, layer_of
from pretrain.run.task_scores import probe_scores

PEAKS = {
    "stated": "the peak that monitor.peak_tflops states",
    "data sheet": "the data sheet's peak of this device",
    "measured": "the peak measured on these cores: an fp32 product of 1024 x 1024 matrices",
}
"""The source of a run's peak, in words."""


def charts(run: RunRecord) -> dict[str, list[str]]:
    """Return section title -> its figures, as HTML."""
    marks = marks_of(run)
    figures: dict[str, list[str]] = {LEARNING: [], OPTIMIZER: [], SPEED: []}
    for chart in learning_charts([*run.train, *run.held_out], [run.headline]):
        figures[LEARNING].append(draw(chart, _series(run, chart), _levels(run, chart), marks))
    figures[LEARNING] += _of_probe(run, marks)
    for chart in CHARTS:
        if chart.section not in figures:
            continue
        series = _series(run, chart)
        if chart.id == THROUGHPUT and series:
            series += _ceilings(run)
            chart = chart._replace(about=f"{chart.about} {ceiling(run)}".strip())
        figures[chart.section].append(draw(chart, series, _levels(run, chart), marks))
    drawn = {title: [one for one in of_section if one] for title, of_section in figures.items()}
    return {title: of_section for title, of_section in drawn.items() if of_section}


def _series(run: RunRecord, chart: Chart) -> list[Series]:
    """Return the curves of the chart that were logged."""
    drawn = []
    for name, curve in ((curve.name, curve) for curve in chart.curves):
        apart = {HELD_OUT: run.held_out, PROBE_PREFIX: run.probe}
        source = next((points for prefix, points in apart.items() if curve.key.startswith(prefix)), run.train)
        if (points := source.get(curve.key)) is not None:
            dots = source is not run.train
            noisy = chart.noisy and not dots
            drawn.append(Series(name, points, curve.colour, dots, dashed=curve.colour == 4, noisy=noisy))
    return drawn


def _levels(run: RunRecord, chart: Chart) -> list[Level]:
    """Return what the curves are compared with, drawn across."""
    if chart.id == "grad-norm":
        clip = number(run.setting("train.clip"))
        return [Level("clipped at", clip)] if clip else []
    value = chart.baseline.of(run.baselines) if chart.baseline else None
    return [] if chart.baseline is None or value is None else [Level(chart.baseline.title, value)]


def _of_probe(run: RunRecord, marks: tuple[Mark, ...]) -> list[str]:
    """Return a chart of each score of train.probe, with the answer that needs no input."""
    figures = []
    for one in probe_scores(run.probe):
        about = (
            "Percent, of the model as it was at each step; the dashed line is an answer that needs no input."
        )
        title, id_ = f"Probe: {one.task}, {one.metric}", f"probe-{one.task}".replace("_", "-")
        chart = Chart(LEARNING, id_, title, about, (Curve(one.key, one.task, 2),))
        trivial = last(run.probe.get(one.trivial_key))
        levels = [] if trivial is None else [Level("trivial", trivial)]
        figures.append(draw(chart, _series(run, chart), levels, marks))
    return figures


def ceiling(run: RunRecord) -> str:
    """Describe the hardware's maximum in a sentence, if the run measured its share of the peak."""
    speed, share = run.final("tokens_per_s"), run.final("mfu")
    if not speed or not share or share <= 0:
        return ""
    whose = PEAKS.get(str(run.summary.get("peak_source")), "its peak")
    return (
        f"The ceiling is {whose}: at it, the hardware would do {text(speed / share)} tokens/s; "
        f"{percent(share)} of that was reached (MFU)."
    )


def marks_of(run: RunRecord) -> tuple[Mark, ...]:
    """Return marks for the starts of phases, resumptions and skipped batches."""
    marks = [Mark(first, PHASE, name) for name, first, _ in run.phases]
    marks += [Mark(attempt.first, RESUMED) for attempt in run.history[1:]]
    steps = [number(event.get("step")) for event in run.events if event.get("event") in ("skip", "rollback")]
    return tuple(marks + [Mark(step, SKIPPED) for step in steps if step is not None])


def _ceilings(run: RunRecord) -> list[Series]:
    """Return the tokens per second at the peak, at each log step: it varies a little with the lengths of the examples,
    and each attempt measures the peak of its own machine."""
    speed, share = run.train.get("tokens_per_s"), run.train.get("mfu")
    if speed is None or share is None:
        return []
    steps, here, there = np.intersect1d(speed.steps, share.steps, return_indices=True)
    shares = np.where(share.values[there] > 0, share.values[there], np.nan)
    tops = speed.values[here] / shares
    return [Series("ceiling", Points(steps, tops), 5, dashed=True)] if np.isfinite(tops).any() else []


# Draw trust ratios by layer over steps, darker for higher ratios. Each row is a layer: the geometric mean over its
# tensors, since ratios are factors. Colours are on a logarithmic scale with a limited number of shades, and each shade
# is one path, so that the picture stays small.


SHADES, COLUMNS, ROWS = 10, 72, 64
TRUST = "Trust ratio of each layer"
ABOUT_TRUST = (
    "LAMB scales the update of each tensor by its trust ratio. A row is a layer (the geometric mean of its tensors), a "
    "column a stretch of steps; stronger colour is a larger ratio, in powers."
)


def trust_picture(run: RunRecord) -> str:
    """Return the heat map as an HTML figure; if the ratios were not logged, how to log them."""
    rows = by_layer(run.trust) if run.trust else {}
    edges, cells = binned(rows) if rows else (np.array([]), np.array([]))
    finite = cells[np.isfinite(cells)]
    if not len(finite):
        how = "Not logged. With monitor.trust_ratios_every=100 a run keeps them, and they are drawn here."
        return figure("trust-map", TRUST, how, "") if run.trust or "trust_ratio" in run.train else ""
    low, high = float(finite.min()), float(finite.max())
    shades = "".join(f'<i class="k{i}"></i>' for i in range(SHADES))
    key = (
        f'<p class="shades"><b>{text(low)}</b><span aria-hidden="true">{shades}</span><b>{text(high)}</b></p>'
    )
    table = []
    for name, points in rows.items():
        values = points.values[np.isfinite(points.values)]
        summary = (
            [values[0], values.min(), np.median(values), values.max(), values[-1]] if len(values) else []
        )
        table.append([escape(name), *(text(float(value)) for value in summary)])
    head = ["layer", "first", "lowest", "median", "highest", "last"]
    body = f"{key}{_plot(list(rows), edges, cells, low, high)}{numbers(head, table)}"
    return figure("trust-map", TRUST, ABOUT_TRUST, body, wide=True)


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
    steps = Scale(float(edges[0]), float(edges[-1]))
    height = 1000 / len(names)
    paths = [""] * SHADES
    for row, values in enumerate(cells.tolist()):
        for column, value in enumerate(values):
            if math.isfinite(value):
                left, right = (1000 * steps(float(edge)) for edge in edges[column : column + 2])
                paths[_shade(value, low, high)] += (
                    f"M{left:.1f} {row * height:.1f}H{right:.1f}v{height:.1f}H{left:.1f}z"
                )
    drawn = "".join(f'<path class="h{i}" d="{path}"/>' for i, path in enumerate(paths) if path)
    every = math.ceil(len(names) / 16)
    grid = {
        "names": names,
        "edges": [int(edge) for edge in edges],
        "cells": [
            [float(f"{v:.3g}") if math.isfinite(v) else None for v in values] for values in cells.tolist()
        ],
    }
    words = f"Ratios from {text(low)} to {text(high)}, over steps {text(steps.low)} to {text(steps.high)}."
    return (
        f'<div class="plot heat" style="--rows:{len(names)}" tabindex="0" role="group" '
        f'aria-label="{TRUST}: arrow keys read the values" '
        f'data-grid="{escape(json.dumps(grid, separators=(",", ":")))}">'
        + labels("top", (((i + 0.5) / len(names), names[i]) for i in range(0, len(names), every)), "rows")
        + drawing("trust-map", f"{TRUST} over steps", words, drawn)
        + labels("left", ((steps(t), text(t)) for t in steps.ticks(5) if t == int(t)), "columns")
        + '<div class="tip" hidden></div></div>'
    )
