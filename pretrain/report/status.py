"""Read from a run's files its progress, health, learning, and the next thing to do.

Uses files alone and no torch, so that it is fast on a login node. Half-written files, of a running or killed process,
are tolerated.
"""

import re
import shlex
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from pretrain.report.health import NOT_STARTED, RUNNING, STARTING, SUBMITTED, TAIL, judge
from pretrain.run.files import number, objects, read, table, tables, text_of, time_in
from pretrain.run.folder import (
    CONFIG,
    RUN,
    SUMMARY,
    read_events,
    read_heartbeat,
    read_settings,
    refuse_other_format,
    shown_table,
    why_not_saved,
)
from pretrain.run.metrics import HEADLINE, headline_of, learning_of
from pretrain.run.metrics_log import METRICS, PROBE, Uploaded, probe_words
from pretrain.run.time_budget import SHARE, phase_at, phases_in, seconds_left

RECENT = 50
"""Log lines from which speed and the remaining time are estimated."""


@dataclass
class Status:
    """The state of a run according to its files. Unknown figures are None; times are seconds."""

    folder: Path
    health: str = NOT_STARTED
    why: str = ""
    """The grounds for the health, in words."""
    error: str = ""
    """Of a crashed run: the last line of an error."""
    log: str = ""
    """The log with the error."""
    doing: str = ""
    step: int = 0
    steps: int | None = None
    """Steps of the whole run; unknown until the end of a run with train.minutes."""
    minutes: float | None = None
    """train.minutes of the run or of its newest phase, and the share of them that is used."""
    share: float | None = None
    phase: str = ""
    loss: float | None = None
    held_out_loss: float | None = None
    figures: dict[str, Any] = field(default_factory=dict)
    """Training and newest evaluation figures, by their names in metrics.jsonl."""
    headline: str = HEADLINE
    """The objective's headline metric."""
    probe: str = ""
    """The newest score of train.probe, in words."""
    findings: list[str] = field(default_factory=list)
    """Problems with what it has learnt, and what usually helps."""
    tokens_per_s: float | None = None
    step_seconds: float | None = None
    seconds_left: float | None = None
    checkpoint: str = ""
    """Name of the newest complete checkpoint."""
    checkpoint_step: int | None = None
    checkpoint_age: float | None = None
    save_error: str = ""
    """Why the newest save failed; empty if it did not."""
    attempts: int = 0
    events: int = 0
    last_event: str = ""
    quiet: float | None = None
    """Seconds since the run last wrote anything; unknown if its files are dated in the future."""
    host: str = ""
    job: str = ""
    """Slurm job of the newest attempt."""
    started: str = ""
    command: str = ""
    wandb: str = ""
    """What W&B lacks of the run, with the command that sends it; empty where it lacks nothing, or has no part in it."""
    jobs: list[dict[str, Any]] = field(default_factory=list)
    """Jobs that `maskmill slurm` submitted."""
    warnings: list[str] = field(default_factory=list)
    """Files of the run that were changed since they were written."""


def read_status(folder: Path, now: float | None = None) -> Status:
    """Return the status of the run in `folder`, which need not exist yet; `now`: seconds since 1970, by the clock that
    dates its files."""
    now = time_in(folder) if now is None else now
    status = Status(folder)
    summary, run = (shown_table(folder / name, status.warnings) for name in (SUMMARY, RUN))
    if (folder / CONFIG).is_file():
        read(folder / CONFIG, lambda path: read_settings(path.parent), {}, status.warnings)
    heartbeat = read_heartbeat(folder)
    refuse_other_format(run, folder)
    lines = list(tables(text_of(folder / METRICS, TAIL)))
    _figures(status, summary, lines, heartbeat)
    status.headline = headline_of(summary)
    status.figures, found = learning_of(folder / METRICS, summary, lines)
    status.findings = [str(finding) for finding in found]
    _checkpoint(status, now)
    status.save_error = why_not_saved(folder)
    events = read_events(folder)
    status.events = len(events)
    if events:
        newest = events[-1]
        step, kind, words = newest.get("step", "?"), newest.get("event", ""), newest.get("text", "")
        status.last_event = f"step {step}: {kind}: {words}"
    status.attempts = int(number(run.get("attempts")) or 0)
    submitted = table(folder / SUBMITTED)
    status.jobs = objects(submitted.get("jobs"))
    status.command = str(submitted.get("command") or "") or status.command
    judge(status, summary, heartbeat, now)
    status.wandb = _wandb(status)
    return status


def _wandb(status: Status) -> str:
    """Return whether the newest attempt's W&B run is kept here alone, or its server may lack the end of an attempt that
    has ended; nothing is asked of a server."""
    runs = [path for path in (status.folder / "wandb").glob("*run-*") if path.is_dir()]
    sent = Uploaded.read(status.folder)
    sends = f"{shlex.join(['maskmill', 'sync', str(status.folder)])} sends it"
    # run-DATE_TIME-ID and offline-run-DATE_TIME-ID: the newest by its date
    if runs and max(runs, key=lambda path: path.name.removeprefix("offline-")).name.startswith("offline-"):
        known = sent.lines if sent else 0
        return f"offline: {f'all after line {known:,} of {METRICS}' if known else 'all of it'} is here alone; {sends}"
    if sent and not sent.settled and status.health not in (RUNNING, STARTING):
        return f"the server may lack the end of it; {sends}"
    return ""


def _figures(
    status: Status, summary: dict[str, Any], lines: list[dict[str, Any]], heartbeat: dict[str, Any]
) -> None:
    trained = [line for line in lines if line.get("kind", "train") == "train" and "loss" in line]
    newest = summary | (trained[-1] if trained else {})
    status.step = int(number(newest.get("step")) or 0)
    status.steps = _whole(summary.get("steps"))
    status.phase, status.started = str(newest.get("phase") or ""), str(summary.get("started") or "")
    status.command = str(summary.get("command") or "")
    status.loss, status.tokens_per_s = number(newest.get("loss")), number(newest.get("tokens_per_s"))
    for line in [summary, *(line for line in lines if line.get("kind") == "eval")]:
        if "held_out_loss" in line:  # null: it was not a number
            status.held_out_loss = number(line["held_out_loss"])
    status.probe = probe_words(summary)
    for line in (line for line in lines if line.get("kind") == PROBE):
        status.probe = f"{probe_words(line)} at step {line.get('step')}"
    pace = [line for line in trained if line.get("phase", "") == (status.phase or line.get("phase", ""))]
    pace = pace[-RECENT:]
    speeds = [speed for line in pace if (speed := number(line.get("tokens_per_s")))]
    if speeds:
        status.tokens_per_s = median(speeds)
    status.step_seconds = _step_seconds(pace, summary)
    measured, reached = status.step, heartbeat.get("step", 0)
    if summary.get("status") == "running" and reached > status.step:  # between two log lines
        status.step = reached
    phases = phases_in(summary)
    if here := phase_at(status.step, phases):
        status.minutes, status.share = number(here.get("minutes")), number(newest.get(SHARE))
    if phases and status.step_seconds is not None:
        status.seconds_left = seconds_left(status.step, status.step_seconds, phases, measured, newest)


def _step_seconds(pace: list[dict[str, Any]], summary: dict[str, Any]) -> float | None:
    """Return the seconds per step, evaluations and saves included: `seconds` of a line is the time that its run has
    trained."""
    points = [(number(line.get("step")), number(line.get("seconds"))) for line in pace]
    known = [(step, seconds) for step, seconds in points if step is not None and seconds is not None]
    gaps = [
        (seconds - before, step - last)
        for (last, before), (step, seconds) in pairwise(known)
        if step > last and seconds > before
    ]
    if gaps:
        return sum(seconds for seconds, _ in gaps) / sum(steps for _, steps in gaps)
    milliseconds = number(summary.get("step_ms"))
    return None if milliseconds is None else milliseconds / 1e3


def _checkpoint(status: Status, now: float) -> None:
    found = []
    for marker in (status.folder / "checkpoints").glob("step-*/checkpoint.json"):
        if digits := re.fullmatch(r"step-(\d{8,})", marker.parent.name):
            try:
                found.append((int(digits[1]), marker.stat().st_mtime))
            except OSError:
                continue  # retention has just dropped it
    if found:
        step, at = max(found)
        status.checkpoint, status.checkpoint_step = f"step-{step:08d}", step
        status.checkpoint_age = max(0.0, now - at)


def _whole(value: Any) -> int | None:
    found = number(value)
    return None if found is None else int(found)
