"""Write the top of the page: what ran, where and how well, at a glance."""

import math
from datetime import datetime
from html import escape
from typing import Any

import numpy as np

from pretrain.report.html.charts.scales import text
from pretrain.report.html.history import last_sign
from pretrain.report.html.record import RunRecord
from pretrain.report.html.statistics import label_shares, splits_of
from pretrain.report.html.tiles import learning_tiles, tile
from pretrain.run.files import number
from pretrain.run.human import duration
from pretrain.run.metrics import (
    HELD_OUT,
    PLATEAU,
    Kind,
    guess,
    kinds_in,
    label_title,
    perplexity,
    said,
    title_of,
)
from pretrain.run.time_budget import SHARE, phase_at, phases_in, seconds_left

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
    return (
        f'<header><p class="status {kind}">{escape(status)}</p><h1>{escape(run.name)}</h1>'
        f'<p class="lead"><strong>{escape(verdict(run))}</strong> {escape(_sentence(run))}</p></header>{advice}'
        f'<section aria-label="Results"><div class="tiles">{"".join(_tiles(run))}</div></section>'
    )


def verdict(run: RunRecord) -> str:
    """Describe in a sentence how well the run did, or is doing so far."""
    kind, figures = run.kind, run.figures
    loss, unigram = (
        number(figures.get(f"{HELD_OUT}{kind.name}_{what}")) for what in ("loss", "unigram_loss")
    )
    if loss is None or not kind.words:
        return _verdict_without_words(run, figures)
    words = f"{title_of(kind.at)} in text it has not seen, its loss is {text(loss)} nats, "
    words += f"a perplexity of {perplexity(loss)}"
    if unigram is None:
        return f"{words}."
    beside = f"word frequencies alone give {text(unigram)}, a perplexity of {perplexity(unigram)}"
    if any(finding.kind == PLATEAU for finding in run.findings):
        return f"No context has been learnt yet. {words}; {beside}."
    fewer = math.exp(min(unigram - loss, 50.0))
    return f"{words}; {beside}, {fewer:.2f} times as unsure."


def _verdict_without_words(run: RunRecord, figures: dict[str, Any]) -> str:
    """Describe the same for an objective with another headline, or a run that is not yet evaluated."""
    terms = [kind for kind in kinds_in(figures) if not kind.part and not kind.labels]
    for name, caveat in [
        (run.headline, ""),
        *((f"{kind.name}_loss", kind.caveat) for kind in terms),
        ("loss", ""),
    ]:
        is_share, unit = name.endswith("accuracy"), " nats" if name.endswith("_loss") else ""
        for key, words in (
            (f"{HELD_OUT}{name}", f"On text it has not seen, its {said(name)} is {{}}{unit}."),
            (name, f"The {said(name)} in training is {{}}{unit}."),
        ):
            if (value := number(figures.get(key))) is not None:
                return f"{words.format(text(value, share=is_share))} {guess(name) or caveat}".strip()
    return "No step is logged yet." if not run.ended else ""


def moment(value: Any) -> datetime | None:
    """Format a moment given as ISO 8601 text."""
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
        f"({text(share, share=True)} of {text(minutes)} min of training)" if share and minutes else "",
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
    told = number(run.summary.get("step"))
    if told is None and run.status == "finished":
        told = number(run.summary.get("steps"))
    return told if told is not None and (run.ended or logged is None) else logged


def _tiles(run: RunRecord) -> list[str]:
    pairs = [kind for kind in kinds_in(run.figures) if kind.labels and kind != run.kind]
    tiles = [*learning_tiles(run), *(_pair_tile(run, kind) for kind in pairs)]
    speed = run.final("tokens_per_s")
    if speed is not None:
        examples = run.final("examples_per_s")
        share = run.final("mfu")
        parts = [f"{text(examples)} examples/s" if examples is not None else ""]
        parts.append(f"{text(share, share=True)} of the peak" if share else "")
        tiles.append(tile("Throughput", text(speed), "tokens/s", ", ".join(part for part in parts if part)))
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


def _pair_tile(run: RunRecord, kind: Kind) -> str:
    prefix, split, title = f"{HELD_OUT}{kind.name}_accuracy", "held_out", f"Held-out {kind.said('accuracy')}"
    if run.final(prefix) is None:
        prefix, split = f"{kind.name}_accuracy", "train"
        title = f"{title_of(kind.said('accuracy'))} in training"
    accuracy = run.final(prefix)
    if accuracy is None:
        return ""
    logged = number(run.figures.get(f"{HELD_OUT}{kind.name}_majority")) if split == "held_out" else None
    shares = label_shares(run, split)
    always = logged if logged is not None else max(shares) if shares else 0.5
    about = f"One answer for all pairs would get {text(always, share=True)}."
    by_label = {label: run.final(f"{prefix}_{label}") for label in kind.labels}
    if None not in by_label.values():
        told = ", ".join(f"{label_title(label)} {text(of, share=True)}" for label, of in by_label.items())
        about = f"{told}. {about}"
    return tile(title, text(accuracy, share=True), "", about)


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
