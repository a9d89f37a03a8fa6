"""Append to events.jsonl, and read from it the attempts, the disturbances and the uploads of a run.

Each line is a JSON object: `event`, its kind; `at`, the time of day; and what the kind has besides.

    started       step it resumes from, seconds of training before, ranks, hosts, device, device_type, threads
    saved         step, seconds until the checkpoint was complete, blocked_seconds of training, bytes
    ended         step, status, exit_code, error, spent: seconds of the attempt
    lines lost    step, kept: lines that metrics.jsonl has left; lines and damaged: those that it had besides
    uploaded      to: wandb or tensorboard; lines, points, cut, settled (see `Uploaded`)
    alerted       cause
    any other     a disturbance: step, text, perhaps batch

The file is never cut, so it also knows of steps that were done twice. A killed attempt cannot log its end: the next one
does, from the last summary.json. A line that a kill has torn is passed over.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from pretrain.run.files import (
    EVENTS,
    TENSORBOARD,
    WANDB,
    append,
    is_count,
    objects,
    table,
    tables,
    text_of,
)

STARTED, SAVED, ENDED = "started", "saved", "ended"
LINES_LOST, UPLOADED, ALERTED = "lines lost", "uploaded", "alerted"
BOOKKEEPING = (STARTED, SAVED, ENDED, LINES_LOST, UPLOADED, ALERTED)
"""Kinds of events that are no disturbances."""
NOT_SAVED, NOT_MIRRORED, HANG = "not saved", "not mirrored", "hang"
"""Kinds of disturbances that are no skipped batches: a save or its copy that failed, and a run that hung."""


def append_event(folder: Path, kind: str, /, at: datetime | None = None, **fields: Any) -> None:
    """Append an event that happens now, or did `at`. Raises OSError where the folder is full or gone."""
    line = {"event": kind, "at": (at or datetime.now(UTC)).isoformat(timespec="seconds"), **fields}
    append(folder / EVENTS, json.dumps(line).encode() + b"\n")


def read_events(folder: Path) -> list[dict[str, Any]]:
    """Read the events of the run in `folder`, oldest first; torn lines are skipped."""
    return [*_events_of_older_files(folder), *tables(text_of(folder / EVENTS))]


def read_disturbances(folder: Path, since: datetime | None = None) -> list[dict[str, Any]]:
    """Read the events that disturbed the run, all or those since a moment, oldest first."""
    events = [event for event in read_events(folder) if event.get("event") not in BOOKKEEPING]
    return [event for event in events if since is None or time_of(event) >= since]


def time_of(event: Mapping[str, Any]) -> datetime:
    """Return when an event was; long ago where it does not say."""
    with suppress(KeyError, ValueError, TypeError, OverflowError):
        at = datetime.fromisoformat(event["at"])
        return at if at.tzinfo else at.replace(tzinfo=UTC)
    return datetime.min.replace(tzinfo=UTC)


# Log the attempts of a run, and read them back. An attempt lasts from one start of the run to its end.


SPENT = "attempt_seconds"
"""Key of summary.json: seconds of the newest attempt, including those lost to a kill."""
LOST = "lost"
"""Status of an attempt that did not log its end: it was killed, it crashed, or its machine is gone."""


class Save(NamedTuple):
    """A completed checkpoint."""

    step: int
    at: datetime
    seconds: float  # from its start until it was complete
    blocked: float  # of these, seconds that training waited while tensors were copied
    bytes: int


@dataclass(frozen=True)
class Attempt:
    """One attempt; `ended` of the newest one is None while it runs."""

    number: int
    started: datetime
    first: int  # the step from which it resumed
    seconds: float = 0.0  # seconds of training before it, in all attempts
    ended: datetime | None = None
    status: str = "running"
    last: int | None = None  # the step that it reached
    error: str = ""
    ranks: int = 0
    hosts: tuple[str, ...] = ()
    device: str = ""
    """Name of the first rank's GPU or processor."""
    device_type: str = ""
    """cuda or cpu."""
    threads: int = 0
    """CPU threads of each rank."""
    spent: float = 0.0
    """Seconds from the moment the engine was ready to the last record."""
    saves: list[Save] = field(default_factory=list)

    @property
    def device_hours(self) -> float:
        """GPU-hours; on CPUs the hours of all threads."""
        return self.spent * self.ranks * (1 if self.device_type == "cuda" else self.threads) / 3600

    def moment(self, seconds: float) -> datetime:
        """Return the time of day at which the run had trained for `seconds`, over all attempts."""
        return self.started + timedelta(seconds=max(0.0, seconds - self.seconds))


class AttemptLog:
    """Log an attempt; do nothing on ranks other than the first. A folder that is full for a while loses lines, but does
    not end the run."""

    def __init__(self, folder: Path, writes: bool) -> None:
        self._folder, self._writes = folder, writes

    def started(self, step: int, summary: dict[str, Any], before: dict[str, Any]) -> None:
        """Log the start of an attempt at `step`, and the end of the previous one if it is missing. `summary`: what this
        attempt will write; `before`: what the previous one wrote last."""
        attempts = read_attempts(self._folder) if self._writes else []
        if attempts and attempts[-1].ended is None:
            at = attempts[-1].moment(float(before.get("seconds", attempts[-1].seconds)))
            reached = max(int(before.get("step", 0)), attempts[-1].first)
            self._log(ENDED, at=at, step=reached, status=LOST, spent=before.get(SPENT, 0.0))
        machine = {name: summary.get(name) for name in ("ranks", "hosts", "device", "device_type", "threads")}
        self._log(STARTED, step=step, seconds=summary.get("seconds", 0.0), **machine)

    def saved(self, step: int, seconds: float, blocked: float, size: int) -> None:
        """Log that the checkpoint of `step` is complete."""
        self._log(SAVED, step=step, seconds=seconds, blocked_seconds=blocked, bytes=size)

    def ended(self, step: int, summary: dict[str, Any], exit_code: int) -> None:
        """Log the end of this attempt, with the status and the error from its `summary`."""
        reason = {"status": summary["status"], "exit_code": exit_code, "error": summary.get("error", "")}
        self._log(ENDED, step=step, **reason, spent=summary.get(SPENT, 0.0))

    def _log(self, kind: str, **fields: Any) -> None:
        if self._writes:
            with suppress(OSError):
                append_event(self._folder, kind, **fields)


def read_attempts(folder: Path, summary: Mapping[str, Any] | None = None) -> list[Attempt]:
    """Read the attempts of the run in `folder`, oldest first; malformed events are skipped. `summary`: summary.json,
    which has the seconds of an attempt that has not ended."""
    attempts: list[Attempt] = []
    for event in read_events(folder):
        with suppress(KeyError, ValueError, TypeError, OverflowError):
            _add(attempts, event)
    if attempts and attempts[-1].ended is None:
        with suppress(ValueError, TypeError):
            attempts[-1] = replace(attempts[-1], spent=float((summary or {}).get(SPENT, 0.0)))
    return attempts


def _add(attempts: list[Attempt], event: dict[str, Any]) -> None:
    """Add what an event says of an attempt. Raises what malformed values raise."""
    if event["event"] not in (STARTED, SAVED, ENDED):
        return
    at, step = datetime.fromisoformat(event["at"]), int(event["step"])
    if at.tzinfo is None:
        raise ValueError("no time zone")
    if event["event"] == STARTED:
        machine: dict[str, Any] = {
            "ranks": int(event.get("ranks") or 0),
            "hosts": tuple(str(host) for host in event.get("hosts") or ()),
            "device": str(event.get("device") or ""),
            "device_type": str(event.get("device_type") or ""),
            "threads": int(event.get("threads") or 0),
        }
        seconds = float(event.get("seconds") or 0.0)
        attempts.append(Attempt(len(attempts) + 1, at, step, seconds, **machine))
    elif event["event"] == SAVED and attempts:
        seconds, blocked = float(event["seconds"]), float(event["blocked_seconds"])
        attempts[-1].saves.append(Save(step, at, seconds, blocked, int(event["bytes"])))
    elif event["event"] == ENDED and attempts:
        status, error = str(event["status"]), str(event.get("error") or "")
        spent = float(event.get("spent") or 0.0)
        attempts[-1] = replace(attempts[-1], ended=at, status=status, last=step, error=error, spent=spent)


def why_not_saved(folder: Path) -> str:
    """Return why the newest attempt's newest save failed; empty where it did not, or none was tried."""
    attempts = read_attempts(folder)
    if not attempts:
        return ""
    since = max([attempts[-1].started, *(save.at for save in attempts[-1].saves)])
    failed = [event for event in read_disturbances(folder, since) if event.get("event") == NOT_SAVED]
    return str(failed[-1].get("text") or "") if failed else ""


# Count the lines of metrics.jsonl that W&B and TensorBoard have. What is logged between two events is not lost: W&B's
# server counts the points that it has, and to TensorBoard's event files lines are written again.


LINES_BETWEEN_EVENTS = 1000
"""Lines that are passed on before the count is logged again."""


@dataclass
class Uploaded:
    """Counts of what one receiver, "wandb" or "tensorboard", was given of a run.

    A point that was passed to W&B is not yet on the server: a kill or a server failure loses points in transit. The
    server reports how many points of a run it has; the next attempt or `maskmill sync` sends those missing at the end.
    Points of steps that were cut, and that a resumed run repeats, stay on the server."""

    lines: int = 0
    """Lines of metrics.jsonl that were passed on."""
    points: int = 0
    """Points passed to W&B, including those of lines that were cut since."""
    cut: int = 0
    """Points whose lines were cut since the server last reported its count."""
    settled: bool = True
    """Whether the server had all of them when the last attempt ended."""

    @classmethod
    def read(cls, folder: Path, to: str) -> "Uploaded | None":
        """Read the newest counts, less the lines that were cut since; None if that receiver never had anything."""
        newest: Uploaded | None = None
        was_cut = False
        for event in read_events(folder):
            kept: Any = event.get("kept")
            if event.get("event") == UPLOADED and event.get("to") == to:
                counts = {name: event.get(name, 0) for name in ("lines", "points", "cut")}
                if all(map(is_count, counts.values())):
                    newest, was_cut = cls(**counts, settled=event.get("settled") is True), False
            elif event.get("event") == LINES_LOST and newest and is_count(kept):
                # an attempt that was killed may have passed on all lines since its count: W&B's server says
                most = kept + len(objects(event.get("lines"))) if to == WANDB and not was_cut else 0
                newest._forget(kept, max(newest.lines, most))
                was_cut = True
        return newest

    def _forget(self, kept: int, passed: int) -> None:
        """Count the lines behind `kept`, of `passed` that may have been passed on, as cut."""
        self.points += passed - self.lines
        self.cut += max(0, passed - kept)
        self.lines = min(passed, kept)

    def add(self, folder: Path, to: str, lines: int = 1) -> None:
        """Count lines that were passed on, and log the count where it is due."""
        before = self.lines // LINES_BETWEEN_EVENTS
        self.lines, self.points = self.lines + lines, self.points + lines
        if self.lines // LINES_BETWEEN_EVENTS > before:
            self.log(folder, to)

    def log(self, folder: Path, to: str) -> None:
        """Log the counts. A folder that cannot be written now does no harm: those of before hold."""
        with suppress(OSError):
            append_event(folder, UPLOADED, to=to, **asdict(self))


def reconciled(known: Uploaded | None, on_server: int, lines: int) -> Uploaded:
    """Return the counts corrected by the server's own; `lines`: those that metrics.jsonl has now."""
    if known is None:  # a run of another folder, or sent by `wandb sync`: the server has the first ones
        return Uploaded(min(on_server, lines), on_server)
    behind = known.points - on_server
    given = known.lines - (max(0, behind - known.cut) if behind > 0 else behind)
    return Uploaded(max(0, min(given, lines)), on_server)


# Read folders of an older version, which kept these events in files of their own. None is written any more.


def _events_of_older_files(folder: Path) -> Iterator[dict[str, Any]]:
    """Return as events what the folder has in attempts.jsonl, wandb_uploaded.json, tensorboard/written.json and
    wandb_alerts.json: it was before all events of this version. metrics.lost.jsonl, which nothing reads, stays."""
    yield from tables(text_of(folder / "attempts.jsonl"))
    for to, name in ((WANDB, "wandb_uploaded.json"), (TENSORBOARD, f"{TENSORBOARD}/written.json")):
        if counts := table(folder / name):
            yield {**counts, "event": UPLOADED, "to": to}
    for cause, seconds in table(folder / "wandb_alerts.json").items():
        with suppress(ValueError, TypeError, OverflowError, OSError):
            yield {"event": ALERTED, "cause": cause, "at": datetime.fromtimestamp(seconds, UTC).isoformat()}
