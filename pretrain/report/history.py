"""Show where a run's time went, its attempts and checkpoints on a timeline, and its disturbances.

The figures of `time_figures` belong to the section on speed; `history_section` is one of its own.
"""

from collections import Counter
from contextlib import suppress
from datetime import datetime, timedelta
from html import escape
from typing import Any

import numpy as np

from pretrain.checkpoint.store import SavedCheckpoint
from pretrain.report.charts import drawing, figure, labels, middle, table, text
from pretrain.report.record import RunRecord
from pretrain.run.events import HANG, LOST, NOT_MIRRORED, NOT_SAVED, Attempt
from pretrain.run.files import number
from pretrain.run.human import duration, in_bytes
from pretrain.run.metrics import HELD_OUT, percent

# Show where a run's time went: within a step, over the whole run, and by rank.


MOST_RANKS = 12


def time_figures(run: RunRecord) -> list[str]:
    """Return the measured times as HTML figures; those not measured are left out."""
    return [figure for figure in (_of_a_step(run), _of_the_run(run), _by_rank(run)) if figure]


def _of_a_step(run: RunRecord) -> str:
    step, forward, waited = (
        middle(run.train.get(name)) for name in ("step_ms", "forward_ms", "data_wait_share")
    )
    if not step or forward is None or waited is None:
        return ""
    waiting = waited * step
    rest = max(0.0, step - forward - waiting)
    parts = {
        "waiting for data": (waiting, 2),
        "forward passes": (forward, 3),
        "backward, communication, update": (rest, 1),
    }
    about = (
        f"The median step takes {text(step)} ms. Ranks meet in the backward pass: their waits are part of it."
    )
    return _stack("step-parts", "Where a step's time goes", about, parts, "ms")


def _of_the_run(run: RunRecord) -> str:
    """Return the seconds of this run: evaluations and checkpoint copies beside everything else."""
    seconds = number(run.summary.get("seconds"))
    spent = [
        points for points in (run.held_out.get("eval_seconds"), run.probe.get("probe_seconds")) if points
    ]
    blocked = sum(save.blocked for attempt in run.history for save in attempt.saves)
    evaluating = sum(float(np.nansum(points.values)) for points in spent)
    if not seconds or (not evaluating and not blocked):
        return ""
    parts = {
        "training": (max(0.0, seconds - evaluating - blocked), 1),
        "evaluating": (evaluating, 3),
        "waiting for checkpoints": (blocked, 2),
    }
    about = (
        f"{duration(seconds)} in all attempts together, without what kills undid. Checkpoints are written in the "
        "background; what counts is the copy that training waits for."
    )
    return _stack("run-parts", "Where the run's time went", about, parts, "s")


def _stack(id_: str, title: str, about: str, parts: dict[str, tuple[float, int]], unit: str) -> str:
    """Return a bar in parts, each with its value and share beside it, as the table of the picture."""
    total = sum(value for value, _ in parts.values()) or 1.0
    at, bars = 0.0, ""
    for value, colour in parts.values():
        width = 1000 * value / total
        bars += f'<rect class="f{colour}" x="{at:.1f}" width="{max(0.0, width - 2):.1f}" height="100"/>'
        at += width
    rows = "".join(
        f'<li><i class="b{colour}"></i><span>{escape(name)}</span><b>{text(value)} {unit}</b>'
        f"<em>{percent(value / total)}</em></li>"
        for name, (value, colour) in parts.items()
    )
    words = ", ".join(f"{name} {percent(value / total)}" for name, (value, _) in parts.items())
    picture = drawing(id_, title, words, bars, "stack", height=100)
    return figure(id_, title, about, f'{picture}<ul class="parts">{rows}</ul>')


def _by_rank(run: RunRecord) -> str:
    """Show how often each rank was the slowest, and by how much: random is fine, always the same rank is not."""
    ranks, ratios = run.train.get("slowest_rank"), run.train.get("slowest_rank_ratio")
    if ranks is None or ratios is None:
        return ""
    by_step = dict(zip(ratios.steps.tolist(), ratios.values.tolist(), strict=True))
    slowest = [
        (int(rank), by_step[step])
        for step, rank in zip(ranks.steps.tolist(), ranks.values.tolist(), strict=True)
        if np.isfinite(rank) and np.isfinite(by_step.get(step, np.nan))
    ]
    counts = Counter(rank for rank, _ in slowest)
    rows = [
        (
            f"rank {rank}",
            text(count),
            percent(count / len(slowest)),
            text(float(np.median([ratio for r, ratio in slowest if r == rank]))),
        )
        for rank, count in counts.most_common(MOST_RANKS)
    ]
    more = len(counts) - MOST_RANKS
    rest = f'<p class="aside">And {more:,} more ranks.</p>' if more > 0 else ""
    about = "Spread over the ranks is chance; one rank in most lines is a slow machine."
    body = table(["", "log lines", "share", "times the others' median"], rows) + rest
    return figure("ranks", "Which rank was the slowest", about, body)


# Show attempts, checkpoints and disturbances.


MAX_ATTEMPTS, MOST_EVENTS = 12, 40
KINDS = {
    "finished": "good",
    "stopped": "fair",
    "failed": "broken",
    LOST: "broken",
    "running": "live",
}
DISTURBANCES = {
    "skip": "batch skipped",
    "rollback": "rolled back",
    "damaged": "damaged data",
    NOT_SAVED: "checkpoint not saved",
    NOT_MIRRORED: "checkpoint not mirrored",
    HANG: "hung, and ended",
}


def history_section(run: RunRecord) -> str:
    """Return the section; empty for a run without records of either."""
    parts = [part for part in (_attempts(run), _checkpoints(run), _disturbances(run)) if part]
    return f'<section id="history"><h2>History</h2><div class="stackup">{"".join(parts)}</div></section>'


def last_sign(run: RunRecord, attempt: Attempt) -> datetime:
    """Return when this attempt was last known to be running, by the clock at its start if it has counted its seconds:
    the clock may have been set since."""
    if attempt.spent and attempt.ended is not None:
        with suppress(OverflowError, ValueError):  # no file is trusted
            return attempt.started + timedelta(seconds=attempt.spent)
    seconds = number(run.summary.get("seconds")) or 0.0
    return max(
        [attempt.ended or attempt.moment(seconds), attempt.started, *(save.at for save in attempt.saves)]
    )


def _attempts(run: RunRecord) -> str:
    if not run.history:
        return ""
    shown = run.history[-MAX_ATTEMPTS:]
    start = min(attempt.started for attempt in shown)  # not the first one's, where a clock was set back
    end = max(last_sign(run, attempt) for attempt in shown)
    span = max((end - start).total_seconds(), 1.0)

    def place(when: datetime) -> float:
        return min(max(1000 * (when - start).total_seconds() / span, 0.0), 1000.0)

    bars = ""
    height = 1000 / len(shown)
    for i, attempt in enumerate(shown):
        left, right = place(attempt.started), place(last_sign(run, attempt))
        top = (i + 0.22) * height
        bars += (
            f'<rect class="attempt {KINDS.get(attempt.status, "fair")}" x="{left:.1f}" y="{top:.1f}" '
            f'width="{max(4.0, right - left):.1f}" height="{0.56 * height:.1f}"/>'
        )
        ticks = "".join(
            f"M{place(save.at):.1f} {top:.1f}v{0.56 * height:.1f}" for save in attempt.saves[-200:]
        )
        bars += f'<path class="save" d="{ticks}"/>' if ticks else ""
    names = [((i + 0.5) / len(shown), f"attempt {attempt.number}") for i, attempt in enumerate(shown)]
    times = [(share, _clock(start + timedelta(seconds=span * share), span)) for share in (0.0, 0.5, 1.0)]
    words = ", ".join(f"{attempt.status} at step {text(_reached(run, attempt))}" for attempt in shown)
    head = ["attempt", "started", "for", "steps", "ended", "ranks", "on", "checkpoints"]
    earlier = len(run.history) - len(shown)
    note = f'<p class="aside">{earlier:,} earlier attempts are left out.</p>' if earlier else ""
    body = (
        f'<div class="plot attempts" style="--rows:{len(shown)}">{labels("top", names, "rows")}'
        f"{drawing('attempts', 'Attempts of the run over time', words, bars)}{labels('left', times, 'columns')}</div>"
        f"{note}{table(head, (_attempt_row(run, attempt) for attempt in shown))}"
    )
    about = "From each start to its end; the ticks are checkpoints that became whole."
    return figure("attempts", "Attempts of the run", about, body)


def _attempt_row(run: RunRecord, attempt: Attempt) -> list[str]:
    reached = _reached(run, attempt)
    seconds = (last_sign(run, attempt) - attempt.started).total_seconds()
    hosts = ", ".join(attempt.hosts[:4]) + (
        f" and {len(attempt.hosts) - 4} more" if len(attempt.hosts) > 4 else ""
    )
    status = {"lost": "killed or crashed", "running": "still running"}.get(attempt.status, attempt.status)
    cells = (
        f"{attempt.started:%Y-%m-%d %H:%M:%S} {attempt.started:%Z}",
        duration(seconds),
        f"{text(attempt.first)} to {text(reached)}",
        f"{status}: {attempt.error}" if attempt.error else status,
        text(attempt.ranks),
        hosts,
        text(len(attempt.saves)),
    )
    return [str(attempt.number), *map(escape, cells)]


def _reached(run: RunRecord, attempt: Attempt) -> float:
    """Return the last step of an attempt."""
    stated = attempt.last if attempt.last is not None else number(run.summary.get("step"))
    return max(float(stated or 0), float(attempt.first), *(float(save.step) for save in attempt.saves), 0.0)


def _clock(when: datetime, span: float) -> str:
    return f"{when:%H:%M:%S}" if span < 600 else f"{when:%H:%M}" if span < 86_400 else f"{when:%d %b %H:%M}"


def _checkpoints(run: RunRecord) -> str:
    """List every checkpoint that was made, and whether it still exists."""
    made = {save.step: save for attempt in run.history for save in attempt.saves}
    kept = {checkpoint.step: checkpoint for checkpoint in run.checkpoints}
    leads = run.held_out.get(f"{HELD_OUT}{run.prediction.name}_loss")
    held_out = leads if leads is not None else run.held_out.get(f"{HELD_OUT}loss")
    losses = dict(zip(*(column.tolist() for column in held_out), strict=True)) if held_out is not None else {}
    rows = []
    steps = sorted(made.keys() | kept.keys(), reverse=True)
    for step in steps[:MOST_EVENTS]:
        here, save = kept.get(step), made.get(step)
        loss = losses.get(step)
        if leads is None and here is not None and here.held_out_loss is not None:
            loss = here.held_out_loss
        weight = here.bytes if here is not None else save.bytes if save is not None else 0
        took = f"{save.seconds:.1f}&nbsp;s, {_short(save.blocked)}&nbsp;s" if save else "—"
        rows.append((text(step), in_bytes(weight), took, text(loss), _state(here)))
    if not rows:
        return _card("checkpoints", "Checkpoints", "<p>There is no whole checkpoint in the run folder.</p>")
    loss_name = f"held-out {run.prediction.label('loss')}" if leads is not None else "held-out loss, total"
    more = len(steps) - MOST_EVENTS
    rest = f'<p class="aside">{more:,} older ones are left out.</p>' if more > 0 else ""
    head = ["step", "size", "took, training waited", loss_name, "now"]
    return _card("checkpoints", "Checkpoints", table(head, rows) + rest)


def _card(id_: str, title: str, body: str) -> str:
    return f'<div class="card" id="{id_}"><h3>{title}</h3>{body}</div>'


def _short(seconds: float) -> str:
    return f"{seconds:.1f}" if seconds >= 1 else f"{seconds:.2g}"


def _state(here: SavedCheckpoint | None) -> str:
    """Return whether a checkpoint still exists, with the name of its folder if that is unusual."""
    if here is None:
        return "dropped"
    return "kept" if here.name == f"step-{here.step:08d}" else f"<code>{escape(here.name)}</code>"


def _disturbances(run: RunRecord) -> str:
    """Describe the events in events.jsonl: the newest ones in full."""
    if not run.events:
        return ""
    more = len(run.events) - MOST_EVENTS
    rest = f'<p class="aside">{more:,} older ones are in events.jsonl.</p>' if more > 0 else ""
    rows = (_event_row(event) for event in reversed(run.events[-MOST_EVENTS:]))
    return _card("disturbances", "Disturbances", table(["batch", "step", "what", "why", "when"], rows) + rest)


def _event_row(event: dict[str, Any]) -> list[str]:
    kind = str(event.get("event") or "")
    cells = (
        text(number(event.get("batch"))),
        text(number(event.get("step"))),
        DISTURBANCES.get(kind, kind),
        str(event.get("text") or ""),
        str(event.get("at") or ""),
    )
    return [escape(cell) for cell in cells]
