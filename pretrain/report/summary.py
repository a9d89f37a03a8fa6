"""Write the top of the page: what ran, where and how well, at a glance, and what to look at."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from html import escape
from typing import Any

import numpy as np

from data_pipeline.errors import redact
from pretrain.report.charts import text
from pretrain.report.history import last_sign
from pretrain.report.record import Points, RunRecord
from pretrain.report.statistics import splits_of
from pretrain.run.causes import HINTS, OUTLIER, cause_of
from pretrain.run.events import HANG
from pretrain.run.files import number
from pretrain.run.human import duration
from pretrain.run.learning import PLATEAU, RISEN, caveat_of, verdict
from pretrain.run.metrics import (
    HELD_OUT,
    Prediction,
    Score,
    known_scores,
    label_title,
    metric,
    percent,
    predictions_in,
    score_of,
    title_of,
)
from pretrain.run.time_budget import SHARE, phase_at, phases_in, seconds_left

# List the problems of a run and what to do about them.


MANY = 0.05
"""Share of batches from which skipped ones are serious."""
SLOWDOWNS = {
    "data stall": ("Ranks waited for data", 0.05),
    "slow rank": ("One rank was slower than the others", 0.1),
    OUTLIER: ("Single steps took much longer than the others", 0.1),
}
"""Cause -> what it is called, and the fraction of log lines from which it is reported: ranks always jitter a little."""
MIN_SLOW_LINES = 5
WORSE = 0.02
"""Rise of the held-out loss above its minimum, as a share, from which overfitting is reported."""


@dataclass(frozen=True)
class Advice:
    """What is wrong, what to do, and whether it is serious."""

    what: str
    hint: str
    grave: bool = False


def advice_section(run: RunRecord) -> str:
    """Return the warnings as a list, serious ones first; empty if there are none."""
    items = "".join(
        f'<li class="{"grave" if one.grave else "mild"}"><b>{escape(one.what)}</b> {escape(one.hint)}</li>'
        for one in sorted(advice(run), key=lambda one: not one.grave)
    )
    if not items:
        return ""
    return f'<section id="look-at" aria-label="What to look at"><ul class="advice">{items}</ul></section>'


def advice(run: RunRecord) -> list[Advice]:
    """Return all advice, in the order of the page."""
    return [*_ends(run), *_broken(run), *_batches(run), *_learning(run), *_speed(run), *_files(run)]


def _ends(run: RunRecord) -> Iterator[Advice]:
    if run.status == "failed":
        error = redact(str(run.summary.get("error") or "It left no message."))
        back = (
            f"Fix the cause, then rerun the same command to resume from step {text(run.checkpoints[-1].step)}."
            if run.checkpoints
            else "There is no checkpoint: the same command starts from the beginning."
        )
        yield Advice(f"The run failed: {error}", f"Look at logs/rank-N.log. {back}", grave=True)
    if run.not_saved:
        yield Advice(
            f"The newest checkpoint could not be saved: {redact(run.not_saved)}.",
            HINTS["not saved"],
            grave=True,
        )
    if hangs := [event for event in run.events if event.get("event") == HANG]:
        count = "once" if len(hangs) == 1 else f"{len(hangs):,} times"
        yield Advice(
            f"The run hung {count} and was ended: {redact(str(hangs[-1].get('text') or ''))}.",
            HINTS["hang"],
        )
    if len(run.lost) > 0:
        count = "One attempt" if len(run.lost) == 1 else f"{len(run.lost)} attempts"
        yield Advice(
            f"{count} of the run ended without a word.",
            "Killed, out of memory, or a machine that is gone: logs/rank-N.log and the job's own log may say.",
        )


def _broken(run: RunRecord) -> Iterator[Advice]:
    losses = [
        f"{one.name}_loss"
        for one in (run.prediction, *predictions_in(run.train))
        if one == run.prediction or not one.is_part
    ]
    trained = {"loss": "the loss", **{key: f"the {metric(key).label}" for key in losses}}
    held_out = {f"{HELD_OUT}{key}": f"the held-out {metric(key).label}" for key in (*losses, "loss")}
    trained["grad_norm"] = f"the {metric('grad_norm').label}"
    yield from _not_finite(run.train, trained, "log lines")
    yield from _not_finite(run.held_out, held_out, "evaluations")


def _not_finite(metrics: dict[str, Points], names: dict[str, str], lines: str) -> Iterator[Advice]:
    """Warn of the first of these metrics with a value that is not finite."""
    for name, words in names.items():
        points = metrics.get(name)
        if points is not None and (wrong := points.steps[~np.isfinite(points.values)]).size:
            yield Advice(
                f"From step {text(float(wrong[0]))} on, {words} is not finite in {wrong.size:,} {lines}.",
                "Lower optim.lr, lengthen schedule.warmup, or use train.precision=bf16 or fp32; "
                "train.on_nan=rollback goes back to the newest checkpoint.",
                grave=True,
            )
            return


def _batches(run: RunRecord) -> Iterator[Advice]:
    skipped, damaged = run.final("skipped_batches") or 0.0, run.final("damaged_examples") or 0.0
    batches = run.final("batch") or 0.0
    if skipped:
        share = skipped / max(batches, 1.0)
        yield Advice(
            f"{text(skipped)} of {text(batches)} batches were skipped ({percent(share)}).",
            "The table of disturbances says why. A few do no harm; many want a lower optim.lr, or other data.",
            grave=share > MANY,
        )
    if damaged:
        yield Advice(
            f"{text(damaged)} examples could not be read and were left out.",
            HINTS["damaged"],
            grave=True,
        )


def _learning(run: RunRecord) -> Iterator[Advice]:
    for finding in run.findings:
        grave = finding.kind == RISEN or (finding.kind == PLATEAU and run.ended)
        yield Advice(finding.what, finding.hint, grave)
    held_out = run.held_out.get(f"{HELD_OUT}{run.prediction.name}_loss", run.held_out.get(f"{HELD_OUT}loss"))
    if held_out is not None and (rise := _risen(held_out)):
        yield Advice(
            f"The held-out loss was lowest at step {text(rise)} and has risen since: the model overfits.",
            "Take the checkpoint of its best step (checkpoint.keep_best keeps it), prepare more text, "
            "or set data.dynamic_masking=true.",
        )
    if run.status == "finished" and not run.held_out:
        yield Advice(
            "Nothing was held out, so nothing says how well the model does on text it has not seen.",
            "data.held_out=0.01 at preparing, and train.eval_every.",
        )


def _risen(points: Points) -> float | None:
    """Return the step of the minimum, if the newest value is clearly above it."""
    finite = np.isfinite(points.values)
    values, steps = points.values[finite], points.steps[finite]
    if len(values) < 3:
        return None
    best = int(values.argmin())
    return float(steps[best]) if values[-1] > values[best] * (1 + WORSE) and best < len(values) - 2 else None


def _speed(run: RunRecord) -> Iterator[Advice]:
    lines = max((len(points.steps) for points in run.train.values()), default=0)
    for cause, (what, least) in SLOWDOWNS.items():
        slow = [(step, words) for step, words in run.slowdowns if cause_of(words) == cause]
        steps = {step for step, _ in slow}
        if lines and len(steps) >= max(MIN_SLOW_LINES, least * lines):
            hint = f"{HINTS[cause]} Newest: {slow[-1][1]}."
            yield Advice(f"{what} in {len(steps):,} of {lines:,} log lines.", hint)


def _files(run: RunRecord) -> Iterator[Advice]:
    for complaint in run.complaints:
        yield Advice(complaint, "The rest of the page is from the other files.")
    if run.status == "stopped":
        yield Advice("The run was stopped before its end.", "Rerun the same command to resume.")


# Show what a run has learnt as tiles, each score with its baseline.


def learning_tiles(run: RunRecord) -> list[str]:
    """Return a tile for each known score of the headline's prediction on held-out text; else one for what says most."""
    prefix, scores = known_scores(run.metrics, run.headline)
    where = "" if prefix else _in_training(run, scores[0].metric.key) if scores else ""
    return [_score_tile(run, score, prefix, where) for score in scores]


def tile(name: str, value: str, unit: str, about: str, picture: str = "", wide: bool = False) -> str:
    """Return one figure with its name above it and its meaning below it."""
    return (
        f'<div class="tile{" wide" if wide else ""}"><h2>{escape(name)}</h2>'
        f'<p class="value">{escape(value)}{f" <small>{escape(unit)}</small>" if unit else ""}</p>'
        f"{picture}{f'<p>{escape(about)}</p>' if about else ''}</div>"
    )


def _score_tile(run: RunRecord, score: Score, prefix: str, where: str = "") -> str:
    """Return the tile of a score; the loss of the headline's prediction is a wide one, with bars."""
    known = score.metric
    name = f"Held-out {known.label}" if prefix else f"{title_of(known.label)} in training"
    sentences = [where or known.about, score.sentence or caveat_of(score, run.headline)]
    is_main = known.measure == "loss" and known.prediction == run.prediction
    if is_main:
        sentences.append(_visible_words(run, prefix))
    bars = ""
    if is_main and known.baseline and score.reference is not None:
        scale = max(score.value, score.reference) or 1.0
        bars = "".join(
            f'<div class="bar"><span>{name}</span><i class="{colour}" '
            f'style="width:{max(0.0, 60 * value / scale):.1f}%"></i><b>{value:.2f}</b></div>'
            for name, colour, value in (
                ("this model", "b2", score.value),
                (known.baseline.label, "b0", score.reference),
            )
        )
    about = " ".join(sentence for sentence in sentences if sentence)
    return tile(name, score.text, known.unit, about, bars, wide=bool(prefix) and is_main)


def _visible_words(run: RunRecord, prefix: str) -> str:
    """Describe the accuracy at visible words in a sentence; empty if unknown."""
    kept, random = (score_of(f"{name}_accuracy", run.metrics, prefix) for name in ("kept", "random"))
    if kept is None:
        return ""
    words = f"Apart from this: {kept.text} right at words that are kept, which takes no more than copying"
    return f"{words}{f', {random.text} where a random word is shown' if random else ''}."


def _in_training(run: RunRecord, key: str) -> str:
    """Return why a score is from training."""
    held_out = run.held_out.get(f"{HELD_OUT}{key}")
    if held_out is None:
        return "This run was not evaluated on held-out text."
    if math.isfinite(held_out.values[-1]):
        return "On held-out text only the untrained model was evaluated yet."
    return "On held-out text the newest was no number."


# Show title and status, the result in words, and a tile for every important number.


STATUS = {
    "finished": ("good", "Finished"),
    "stopped": ("fair", "Stopped"),
    "failed": ("broken", "Failed"),
    "running": ("live", "Running"),
    "unknown": ("fair", "End unknown"),
}


def headline(run: RunRecord, advice: str) -> str:
    """Return title, status, the result in words, advice, and a tile for every important number."""
    kind, status = STATUS.get(run.status, ("fair", run.status))
    words = verdict(run.metrics, run.headline, run.findings) or (
        "" if run.ended else "No step is logged yet."
    )
    return (
        f'<header><p class="status {kind}">{escape(status)}</p><h1>{escape(run.name)}</h1>'
        f'<p class="lead"><strong>{escape(words)}</strong> {escape(_sentence(run))}</p></header>{advice}'
        f'<section aria-label="Results"><div class="tiles">{"".join(_tiles(run))}</div></section>'
    )


def moment(value: Any) -> datetime | None:
    """Parse a moment given as ISO 8601 text; return None for anything else."""
    try:
        return datetime.fromisoformat(str(value))
    except ValueError:
        return None


def elapsed(run: RunRecord) -> float | None:
    """Return the seconds of training: the run's own count, else from its start to its end."""
    own = number(run.summary.get("seconds"))
    if own is not None:
        return own
    start, end = moment(run.summary.get("started")), moment(run.summary.get("finished"))
    if start is None or end is None or (start.tzinfo is None) != (end.tzinfo is None):
        return None
    return (end - start).total_seconds()


def _sentence(run: RunRecord) -> str:
    steps, planned = _steps(run), number(run.summary.get("steps")) or number(run.setting("train.steps"))
    share, minutes = number(run.summary.get(SHARE)), number(run.setting("train.minutes"))
    ranks, device = number(run.summary.get("ranks")), run.summary.get("device")
    done = (
        f"{text(steps)} of {text(planned)} steps" if planned and steps != planned else f"{text(steps)} steps"
    )
    parts = [
        f"Objective {run.setting('objective.name')}" if run.setting("objective.name") else "",
        done if steps is not None else "",
        f"({percent(share)} of {text(minutes)} min of training)" if share and minutes else "",
        f"up to phase {run.summary['phase']}" if run.summary.get("phase") else "",
        f"in {duration(elapsed(run))}" if duration(elapsed(run)) else "",
        f"on {text(ranks)} rank{'' if ranks == 1 else 's'}" if ranks else "",
        f"of {device}" if device and ranks else f"on {device}" if device else "",
    ]
    words = " ".join(part for part in parts[1:] if part)
    return (
        ": ".join(part for part in (parts[0], words) if part) + "." if any(parts) else "Nothing recorded yet."
    )


def _steps(run: RunRecord) -> float | None:
    """Return the finished steps: from the summary of an ended run, else from its lines."""
    logged = max((float(metric.steps[-1]) for metric in run.train.values()), default=None)
    stated = number(run.summary.get("step"))
    if stated is None and run.status == "finished":
        stated = number(run.summary.get("steps"))
    return stated if stated is not None and (run.ended or logged is None) else logged


def _tiles(run: RunRecord) -> list[str]:
    pairs = [one for one in predictions_in(run.metrics) if one.labels and one != run.prediction]
    tiles = [*learning_tiles(run), *(_pair_tile(run, task) for task in pairs)]
    speed = run.final("tokens_per_s")
    if speed is not None:
        others = [metric(key).worded(run.final(key)) for key in ("examples_per_s", "mfu")]
        tiles.append(tile("Throughput", text(speed), "tokens/s", ", ".join(part for part in others if part)))
    if elapsed(run) is not None:
        started = moment(run.summary.get("started"))
        about = f"Started {started:%Y-%m-%d %H:%M}{_zone(started)}." if started else ""
        about += (
            f" Resumed {run.attempts - 1} times."
            if run.attempts > 2
            else " Resumed once."
            if run.attempts == 2
            else ""
        )
        if left := _left(run):
            about = f"About {duration(left)} left at the newest pace. {about}"
        if not run.ended and run.history:
            sign = last_sign(run, run.history[-1])
            about += (
                f" Last activity {sign:%Y-%m-%d %H:%M:%S}{_zone(sign)}: long ago means that it was killed."
            )
        tiles.append(tile("Time", duration(elapsed(run)), "", about))
    parameters = number(run.summary.get("parameters"))
    if parameters is not None:
        tiles.append(tile("Parameters", _large(parameters), "", _shape(run)))
    tiles.append(_data_tile(run))
    return [tile for tile in tiles if tile] or [tile("Results", "none yet", "", "No metrics were logged.")]


def _left(run: RunRecord) -> float | None:
    """Estimate the remaining seconds of a running run, at the pace of its newest tenth, within the newest phase if
    any."""
    points, phases = run.train.get("seconds"), phases_in(run.summary)
    if run.ended or points is None or not phases:
        return None
    steps, seconds = points
    phase = phase_at(float(steps[-1]), phases) or {}
    begun = int(np.searchsorted(steps, number(phase.get("first")) or 0.0))
    first = max(begun, min(len(steps) - 2, int(0.9 * len(steps))))
    if first < 0 or first > len(steps) - 2:
        return None
    a_step = float((seconds[-1] - seconds[first]) / (steps[-1] - steps[first]))
    if not math.isfinite(a_step):
        return None
    return seconds_left(int(steps[-1]), a_step, phases, newest=run.summary) or None


def _pair_tile(run: RunRecord, task: Prediction) -> str:
    prefix = HELD_OUT if run.metrics.get(f"{HELD_OUT}{task.name}_accuracy") is not None else ""
    score = score_of(f"{task.name}_accuracy", run.metrics, prefix)
    if score is None:
        return ""
    by_label = [
        (label, score_of(f"{score.metric.key}_{label}", run.metrics, prefix)) for label in task.labels
    ]
    words = ", ".join(f"{label_title(label)} {one.text}" for label, one in by_label if one)
    return _score_tile(run, score, prefix, f"{words}." if all(one for _, one in by_label) else "")


def _data_tile(run: RunRecord) -> str:
    data = run.summary.get("data")
    parts = splits_of(data) if isinstance(data, dict) else {}
    counts = next((part for part in parts.values() if "tokens" in part), {})
    documents = next((number(part["documents"]) for part in parts.values() if "documents" in part), None)
    tokens, examples = number(counts.get("tokens")), number(counts.get("examples"))
    if tokens is None:
        return ""
    about = [
        f"{_large(count)} {name}"
        for name, count in (("examples", examples), ("documents", documents))
        if count
    ]
    return tile("Data", _large(tokens), "tokens", ", ".join(about) + "." if about else "")


def _zone(when: datetime) -> str:
    return f" {when:%Z}" if when.tzinfo else ""


def _large(count: float) -> str:
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f}"


def _shape(run: RunRecord) -> str:
    layers, hidden, heads = (run.setting(f"encoder.{name}") for name in ("layers", "hidden", "heads"))
    return f"{layers} layers, {hidden} wide, {heads} heads." if layers and hidden and heads else ""
