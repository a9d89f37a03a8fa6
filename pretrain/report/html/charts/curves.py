"""Draw a run's pictures: learning, optimizer, speed. What the run did not log is left out.

`PICTURES` is the table of them; a metric of an objective that it does not name gets a picture of its own.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pretrain.evaluate.scores import sum_of
from pretrain.report.html.charts.draw import PHASE, RESUMED, SKIPPED, Chart, Mark, draw
from pretrain.report.html.charts.figures import Level, Series
from pretrain.report.html.charts.scales import text
from pretrain.report.html.record import Points, RunRecord
from pretrain.report.html.statistics import not_next_share
from pretrain.run.tolerant_json import number

LEARNING, OPTIMIZER, SPEED = "Learning", "Optimizer", "Speed"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,60}")
HELD_OUT, THROUGHPUT = "held_out_", "tokens-per-s"
PEAKS = {
    "stated": "the peak that monitor.peak_tflops states",
    "data sheet": "the data sheet's peak of this device",
    "measured": "the peak measured on these cores: an fp32 product of 1024 x 1024 matrices",
}
"""Where a run's peak comes from, in words."""


@dataclass(frozen=True)
class Curve:
    """A metric and how it is drawn; NotNext and padding are dashed, not told by colour alone."""

    name: str
    metric: str
    colour: int = 1
    dots: bool = False

    def series(self, run: RunRecord, noisy: bool) -> list[Series]:
        """What was logged of it: nothing, or one line."""
        source = run.held_out if self.metric.startswith(HELD_OUT) else run.train
        points = source.get(self.metric)
        if points is None:
            return []
        dashed = self.colour == 4
        return [Series(self.name, points, self.colour, self.dots, dashed, noisy and not self.dots)]


@dataclass(frozen=True)
class Picture:
    """A chart to be drawn where the run logged something of it."""

    section: str
    id: str
    title: str
    about: str
    curves: tuple[Curve, ...]
    levels: Callable[[RunRecord], list[Level]] = lambda run: []
    needs: str = ""  # a metric without which it is not drawn
    noisy: bool = True
    share: bool = False
    whole: bool = False
    zero: bool = False
    wide: bool = False


def charts(run: RunRecord) -> dict[str, list[str]]:
    """Section title -> its figures, as HTML."""
    marks = marks_of(run)
    figures: dict[str, list[str]] = {LEARNING: [], OPTIMIZER: [], SPEED: []}
    for picture in [*PICTURES, *_unnamed(run)]:
        if picture.needs and picture.needs not in run.train:
            continue
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
    """What the hardware could do at most, in a sentence, where the run measured its share of the peak."""
    speed, share = run.final("tokens_per_s"), run.final("mfu")
    if not speed or not share or share <= 0:
        return ""
    whose = PEAKS.get(str(run.summary.get("peak_source")), "its peak")
    return (
        f"The ceiling is {whose}: at it, the hardware would do {text(speed / share)} tokens/s; "
        f"{text(share, share=True)} of that was reached (MFU)."
    )


def marks_of(run: RunRecord) -> tuple[Mark, ...]:
    """Where phases began, where the run was resumed, and the batches that were skipped."""
    found = [Mark(first, PHASE, name) for name, first, _ in run.phases]
    found += [Mark(attempt.first, RESUMED) for attempt in run.history[1:]]
    steps = [number(event.get("step")) for event in run.events if event.get("event") in ("skip", "rollback")]
    return tuple(found + [Mark(step, SKIPPED) for step in steps if step is not None])


def _ceilings(run: RunRecord) -> list[Series]:
    """Tokens a second at the peak, at each log step: it follows the lengths of the examples a little, and each attempt
    measures the peak of its own machine."""
    speed, share = run.train.get("tokens_per_s"), run.train.get("mfu")
    if speed is None or share is None:
        return []
    steps, here, there = np.intersect1d(speed.steps, share.steps, return_indices=True)
    shares = np.where(share.values[there] > 0, share.values[there], np.nan)
    tops = speed.values[here] / shares
    return [Series("ceiling", Points(steps, tops), 5, dashed=True)] if np.isfinite(tops).any() else []


def _baseline(name: str, metric: str) -> Callable[[RunRecord], list[Level]]:
    """A level at the newest value of a held-out baseline."""

    def levels(run: RunRecord) -> list[Level]:
        value = run.final(f"{HELD_OUT}{metric}")
        return [Level(name, value)] if value is not None else []

    return levels


def _share(run: RunRecord) -> float:
    return not_next_share(run, "train") or 0.5


def _knowing_shares(run: RunRecord) -> list[Level]:
    """Entropy in nats of a label that is true for the share of NotNext."""
    parts = (_share(run), 1 - _share(run))
    return [Level("knowing only the shares", -sum(part * math.log(part) for part in parts if part > 0))]


def _one_answer(run: RunRecord) -> list[Level]:
    return [Level("one answer for all", max(_share(run), 1 - _share(run)))]


def _clip(run: RunRecord) -> list[Level]:
    clip = number(run.setting("train.clip"))
    return [Level("clipped at", clip)] if clip else []


def _pairs(metric: str) -> tuple[Curve, ...]:
    return (
        Curve("train", metric),
        Curve("IsNext", f"{metric}_is_next", 3),
        Curve("NotNext", f"{metric}_not_next", 4),
        _held_out(metric),
    )


def _held_out(metric: str) -> Curve:
    return Curve("held-out", f"{HELD_OUT}{metric}", 2, dots=True)


PICTURES = (
    Picture(LEARNING, "mask-loss", "Loss at [MASK]",
            "Nats a token predicted at [MASK]; lower is better. Above the dashed line no context has been learnt.",
            (Curve("train", "mask_loss"), _held_out("mask_loss")),
            _baseline("word frequencies alone", "mask_unigram_loss"), wide=True),
    Picture(LEARNING, "mask-accuracy", "Accuracy at [MASK]",
            "Share of [MASK] positions whose most probable word is the right one.",
            (Curve("train", "mask_accuracy"), _held_out("mask_accuracy")),
            _baseline("most frequent token", "mask_majority"), share=True, zero=True),
    Picture(LEARNING, "nsp-loss", "Next-sentence loss",
            "Nats a pair; lower is better. Knowing only how many pairs are NotNext would give the dashed line.",
            _pairs("nsp_loss"), _knowing_shares),
    Picture(LEARNING, "nsp-accuracy", "Next-sentence accuracy, by pair label", "Share of pairs judged right.",
            _pairs("nsp_accuracy"), _one_answer, share=True),
    Picture(LEARNING, "kinds-accuracy", "Accuracy where a word is shown",
            "Copying gets kept words right without any context; where a random word is shown, it gets none right.",
            (Curve("kept, train", "kept_accuracy", 3), Curve("kept, held-out", "held_out_kept_accuracy", 3, dots=True),
             Curve("random, train", "random_accuracy", 4),
             Curve("random, held-out", "held_out_random_accuracy", 4, dots=True)), share=True, zero=True),
    Picture(LEARNING, "kinds-loss", "Loss where a word is shown",
            "Nats a token, of words that are kept and of positions that show a random one.",
            (Curve("kept, train", "kept_loss", 3), Curve("kept, held-out", "held_out_kept_loss", 3, dots=True),
             Curve("random, train", "random_loss", 4),
             Curve("random, held-out", "held_out_random_loss", 4, dots=True))),
    Picture(LEARNING, "mlm-loss", "Loss over all predicted tokens",
            "Nats a token, visible words included: copying those lowers it, so it does not show what was learnt.",
            (Curve("train", "mlm_loss"), _held_out("mlm_loss"))),
    Picture(LEARNING, "mlm-accuracy", "Accuracy over all predicted tokens",
            "Visible words included, which copying gets right.",
            (Curve("train", "mlm_accuracy"), _held_out("mlm_accuracy")), share=True, zero=True),
    Picture(LEARNING, "loss", "Total loss", "The sum that is minimised",
            (Curve("train", "loss"), _held_out("loss")), needs="nsp_loss"),
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
"""Every picture that the report knows, in the order of the page."""


def _unnamed(run: RunRecord) -> list[Picture]:
    """Pictures of losses and accuracies that an objective logged and the table above does not name."""
    named = {curve.metric for picture in PICTURES for curve in picture.curves} | {"loss"}
    found = []
    for metric in run.train:
        share = metric.endswith("_accuracy")
        if metric in named or not (share or metric.endswith("_loss")) or not _NAME.fullmatch(metric):
            continue
        title = metric.replace("_", " ").capitalize()
        about = "Share judged right." if share else "Lower is better."
        curves = (Curve("train", metric), _held_out(metric))
        found.append(Picture(LEARNING, metric.replace("_", "-"), title, about, curves, share=share))
    return found
