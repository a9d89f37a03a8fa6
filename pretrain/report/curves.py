"""Draw a run's charts of learning, optimizer and speed, and its trust ratios by layer.

`PICTURES` lists the charts of every run; learning charts are chosen by the names of its figures. Metrics that the run
did not log are left out.
"""

import json
import math
from collections.abc import Callable
from html import escape

import numpy as np
from numpy.typing import NDArray

from pretrain.report.charts import (
    LEARNING,
    OPTIMIZER,
    PHASE,
    RESUMED,
    SKIPPED,
    SPEED,
    Chart,
    Curve,
    Level,
    Mark,
    Picture,
    Series,
    draw,
    of_probes,
    text,
    ticks,
)
from pretrain.report.record import Points, RunRecord
from pretrain.report.statistics import label_shares
from pretrain.run.files import number
from pretrain.run.metrics import HELD_OUT, Kind, kinds_in, label_title, leads_alone, said, sum_of, title_of
from pretrain.run.metrics_log import layer_of

THROUGHPUT = "tokens-per-s"
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
    for picture in [*_learning(run), *PICTURES]:
        series = [line for curve in picture.curves for line in curve.series(run, picture.noisy)]
        about = picture.about
        if picture.id == THROUGHPUT:
            series += _ceilings(run) if series else []
            about = f"{about} {ceiling(run)}".strip()
        if picture.id == "loss":
            about = f"{about}: {sum_of(run.train)}."
        figure = draw(
            Chart(
                picture.id, picture.title, about, series, picture.levels(run),
                picture.share, picture.whole, picture.zero, marks, picture.wide,
            )
        )  # fmt: skip
        figures[picture.section] += [figure] if figure else []
    return {title: drawn for title, drawn in figures.items() if drawn}


def ceiling(run: RunRecord) -> str:
    """Describe the hardware's maximum in a sentence, if the run measured its share of the peak."""
    speed, share = run.final("tokens_per_s"), run.final("mfu")
    if not speed or not share or share <= 0:
        return ""
    whose = PEAKS.get(str(run.summary.get("peak_source")), "its peak")
    return (
        f"The ceiling is {whose}: at it, the hardware would do {text(speed / share)} tokens/s; "
        f"{text(share, share=True)} of that was reached (MFU)."
    )


def marks_of(run: RunRecord) -> tuple[Mark, ...]:
    """Return marks for the starts of phases, resumptions and skipped batches."""
    found = [Mark(first, PHASE, name) for name, first, _ in run.phases]
    found += [Mark(attempt.first, RESUMED) for attempt in run.history[1:]]
    steps = [number(event.get("step")) for event in run.events if event.get("event") in ("skip", "rollback")]
    return tuple(found + [Mark(step, SKIPPED) for step in steps if step is not None])


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


def _baseline(name: str, metric: str) -> Callable[[RunRecord], list[Level]]:
    """Return a level at the newest value of a held-out baseline."""

    def levels(run: RunRecord) -> list[Level]:
        value = run.final(f"{HELD_OUT}{metric}")
        return [Level(name, value)] if value is not None else []

    return levels


def _knowing_shares(run: RunRecord) -> list[Level]:
    """Return the entropy of a label in nats, from the frequency of each."""
    shares = label_shares(run, "train") or [0.5, 0.5]
    return [Level("knowing only the shares", -sum(part * math.log(part) for part in shares if part > 0))]


def _one_answer(run: RunRecord) -> list[Level]:
    return [Level("one answer for all", max(label_shares(run, "train") or [0.5]))]


def _clip(run: RunRecord) -> list[Level]:
    clip = number(run.setting("train.clip"))
    return [Level("clipped at", clip)] if clip else []


def _held_out(metric: str) -> Curve:
    return Curve("held-out", f"{HELD_OUT}{metric}", 2, dots=True)


def _learning(run: RunRecord) -> list[Picture]:
    """Return the learning charts, by the names of the figures: headline, pairs, what copying could achieve, the loss
    terms."""
    kinds = [kind for kind in kinds_in(run.train) if kind != run.kind]
    parts = [kind for kind in kinds if kind.part]
    others = [kind for kind in kinds if not kind.part and not kind.labels]
    pictures = [*_of_words(run.kind)] if run.kind.words else [*_of_others(run.kind)]
    for kind in kinds:
        pictures += _of_pairs(kind) if kind.labels else []
    pictures += [*_where_a_word_is_shown(parts)] if parts else []
    for kind in others:
        pictures += _of_others(kind)
    terms = [kind for kind in kinds_in(run.train) if f"{kind.name}_loss" in run.train and not kind.part]
    total = Picture(
        LEARNING,
        "loss",
        "Total loss",
        "The sum that is minimised",
        (Curve("train", "loss"), _held_out("loss")),
    )
    own = (
        [
            Picture(
                LEARNING,
                "headline",
                title_of(said(run.headline)),
                "What the objective leads with.",
                (Curve("train", run.headline), _held_out(run.headline)),
            )
        ]
        if leads_alone(run.headline)
        else []
    )
    return [*own, *pictures, *([total] if len(terms) > 1 else []), *of_probes(run)]


def _of_words(kind: Kind) -> list[Picture]:
    """Return the charts of word predictions, beside the word-frequency baselines."""
    where = kind.at if kind.at.startswith("at ") else f"of {kind.subject}"
    return [
        Picture(LEARNING, f"{kind.name}-loss", title_of(kind.said("loss")),
                f"Nats a token predicted {where}; lower is better. Above the dashed line no context has been learnt.",
                (Curve("train", f"{kind.name}_loss"), _held_out(f"{kind.name}_loss")),
                _baseline("word frequencies alone", f"{kind.name}_unigram_loss"), wide=True),
        Picture(LEARNING, f"{kind.name}-accuracy", title_of(kind.said("accuracy")),
                f"Share of {kind.tag or kind.subject} positions whose most probable word is the right one.",
                (Curve("train", f"{kind.name}_accuracy"), _held_out(f"{kind.name}_accuracy")),
                _baseline("most frequent token", f"{kind.name}_majority"), share=True, zero=True),
    ]  # fmt: skip


def _of_pairs(kind: Kind) -> list[Picture]:
    """Return the charts of a pair task, with a curve for each label."""
    last = label_title(kind.labels[-1])
    return [
        Picture(LEARNING, f"{kind.name}-loss", title_of(kind.said("loss")),
                f"Nats a pair; lower is better. Knowing only how many pairs are {last} would give the dashed line.",
                _by_label(kind, "loss"), _knowing_shares),
        Picture(LEARNING, f"{kind.name}-accuracy", f"{title_of(kind.said('accuracy'))}, by pair label",
                "Share of pairs judged right.", _by_label(kind, "accuracy"), _one_answer, share=True),
    ]  # fmt: skip


def _by_label(kind: Kind, what: str) -> tuple[Curve, ...]:
    name = f"{kind.name}_{what}"
    labels = (Curve(label_title(label), f"{name}_{label}", 3 + i) for i, label in enumerate(kind.labels))
    return (Curve("train", name), *labels, _held_out(name))


def _where_a_word_is_shown(kinds: list[Kind]) -> list[Picture]:
    """Return the charts of positions that show a word, where copying is right or wrong."""
    curves = {
        what: tuple(
            Curve(f"{kind.name}, {split}", f"{prefix}{kind.name}_{what}", 3 + i, dots=bool(prefix))
            for i, kind in enumerate(kinds)
            for split, prefix in (("train", ""), ("held-out", HELD_OUT))
        )
        for what in ("accuracy", "loss")
    }
    return [
        Picture(LEARNING, "kinds-accuracy", "Accuracy where a word is shown",
                "Copying gets kept words right without any context; where a random word is shown, it gets none right.",
                curves["accuracy"], share=True, zero=True),
        Picture(LEARNING, "kinds-loss", "Loss where a word is shown",
                "Nats a token, of words that are kept and of positions that show a random one.", curves["loss"]),
    ]  # fmt: skip


def _of_others(kind: Kind) -> list[Picture]:
    """Return the charts of an objective's other predictions."""
    caveat, name = f" {kind.caveat}" if kind.caveat else "", kind.name.replace("_", "-")
    return [
        Picture(LEARNING, f"{name}-loss", title_of(kind.said("loss")), f"Lower is better.{caveat}",
                (Curve("train", f"{kind.name}_loss"), _held_out(f"{kind.name}_loss"))),
        Picture(LEARNING, f"{name}-accuracy", title_of(kind.said("accuracy")),
                f"Share judged right.{caveat}",
                (Curve("train", f"{kind.name}_accuracy"), _held_out(f"{kind.name}_accuracy")),
                _baseline("commonest answer", f"{kind.name}_majority"), share=True, zero=True),
    ]  # fmt: skip


PICTURES = (
    Picture(OPTIMIZER, "lr", "Learning rate", "As the schedule set it.",
            (Curve("learning rate", "lr"),), noisy=False, zero=True),
    Picture(OPTIMIZER, "grad-norm", "Gradient norm", "Before clipping, over all parameters.",
            (Curve("gradient norm", "grad_norm"),), _clip, zero=True),
    Picture(OPTIMIZER, "trust-ratio", "Mean trust ratio",
            "LAMB: norm of a tensor over norm of its update, averaged over tensors.",
            (Curve("trust ratio", "trust_ratio"),), zero=True),
    Picture(SPEED, THROUGHPUT, "Throughput", "Tokens a second over all ranks, padding not counted.",
            (Curve("tokens/s", "tokens_per_s"),), zero=True, wide=True),
    Picture(SPEED, "step-time", "Time of a step",
            "Milliseconds, on the rank where it is longest: the median step, its forward passes, and the slowest.",
            (Curve("median", "step_ms"), Curve("forward", "forward_ms", 3), Curve("slowest", "slowest_step_ms", 4)),
            zero=True),
    Picture(SPEED, "shares", "Where the time and the token budget go",
            "Budget used: tokens of what the micro-batches could have held; what is left of it is not padding, which "
            "has a line of its own. Data wait: time spent waiting for batches. MFU: of the peak.",
            (Curve("budget used", "fill", 3), Curve("data wait", "data_wait_share", 2), Curve("MFU", "mfu"),
             Curve("padding", "padding_share", 4)), share=True, whole=True),
    Picture(SPEED, "slow-rank", "The slowest rank",
            "How many times as long its forward passes take, token for token, as the median of the others.",
            (Curve("slowest rank", "slowest_rank_ratio", 2),)),
    Picture(SPEED, "memory", "Memory", "Highest use of one rank, in GB.",
            (Curve("memory", "memory_gb"),), noisy=False, zero=True),
)  # fmt: skip
"""The pictures of every run, in the order of the page."""


# Draw trust ratios by layer over steps, darker for higher ratios. Each row is a layer: the geometric mean over its
# tensors, since ratios are factors. Colours are on a logarithmic scale with a limited number of shades, and each shade
# is one path, so that the picture stays small.


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
