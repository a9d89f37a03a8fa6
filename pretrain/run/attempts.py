"""Log each start, checkpoint and end of a run's processes to attempts.jsonl, and what disturbs it to events.jsonl, and
read them back.

An attempt lasts from one start of the run to its end. A killed attempt cannot log its end: the next one does, from the
last summary.json. The file is never cut, so it also counts the steps that were done twice.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from pretrain.run.atomic_write import append
from pretrain.run.tolerant_json import tables, text_of

ATTEMPTS, EVENTS = "attempts.jsonl", "events.jsonl"
NOT_SAVED, NOT_MIRRORED, HANG = "not saved", "not mirrored", "hang"
"""Kinds of events that are no skipped batches: a save or its copy that failed, and a run that hung."""
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
    """Write attempts.jsonl; do nothing on ranks other than the first. A folder that is full for a while loses lines,
    but does not end the run."""

    def __init__(self, folder: Path, writes: bool) -> None:
        self._path, self._writes = folder / ATTEMPTS, writes

    def started(self, step: int, summary: dict[str, Any], before: dict[str, Any]) -> None:
        """Log the start of an attempt at `step`, and the end of the previous one if it is missing. `summary`: what this
        attempt will write; `before`: what the previous one wrote last."""
        attempts = read_attempts(self._path.parent) if self._writes else []
        if attempts and attempts[-1].ended is None:
            seconds = float(before.get("seconds", attempts[-1].seconds))
            at = attempts[-1].moment(seconds).isoformat(timespec="seconds")
            reached = max(int(before.get("step", 0)), attempts[-1].first)
            spent = before.get(SPENT, 0.0)
            self._write({"event": "ended", "at": at, "status": LOST, "step": reached, "spent": spent})
        where = {name: summary.get(name) for name in ("ranks", "hosts", "device", "device_type", "threads")}
        self._write(
            {"event": "started", "at": _now(), "step": step, "seconds": summary.get("seconds", 0.0)} | where
        )

    def saved(self, step: int, seconds: float, blocked: float, size: int) -> None:
        """Log that the checkpoint of `step` is complete."""
        self._write(
            {
                "event": "saved",
                "at": _now(),
                "step": step,
                "seconds": seconds,
                "blocked_seconds": blocked,
                "bytes": size,
            }
        )

    def ended(self, step: int, summary: dict[str, Any]) -> None:
        """Log the end of this attempt, with the status and the error from its `summary`."""
        words = {
            "status": summary["status"],
            "error": summary.get("error", ""),
            "spent": summary.get(SPENT, 0.0),
        }
        self._write({"event": "ended", "at": _now(), "step": step, **words})

    def _write(self, line: dict[str, Any]) -> None:
        if self._writes:
            with suppress(OSError):
                append(self._path, json.dumps(line).encode() + b"\n")


def log_event(folder: Path, kind: str, step: int, text: str, **where: int) -> None:
    """Append a disturbance of a run to events.jsonl, which no later attempt cuts. Raises OSError where the folder is
    full or gone."""
    line = {"event": kind, **where, "step": step, "text": text, "at": _now()}
    append(folder / EVENTS, json.dumps(line).encode() + b"\n")


def read_events(folder: Path) -> list[dict[str, Any]]:
    """Read the disturbances of the run in `folder`, oldest first; torn lines are skipped."""
    return list(tables(text_of(folder / EVENTS)))


def events_since(folder: Path, kind: str, since: datetime) -> list[dict[str, Any]]:
    """Return the disturbances of a kind since a moment, oldest first."""
    return [one for one in read_events(folder) if one.get("event") == kind and _at(one) >= since]


def why_not_saved(folder: Path) -> str:
    """Return why the newest attempt's newest save failed; empty where it did not, or none was tried."""
    attempts = read_attempts(folder)
    if not attempts:
        return ""
    since = max([attempts[-1].started, *(save.at for save in attempts[-1].saves)])
    failed = events_since(folder, NOT_SAVED, since)
    return str(failed[-1].get("text") or "") if failed else ""


def _at(event: Mapping[str, Any]) -> datetime:
    """Return when an event was; long ago where it does not say."""
    with suppress(KeyError, ValueError, TypeError, OverflowError):
        found = datetime.fromisoformat(event["at"])
        return found if found.tzinfo else found.replace(tzinfo=UTC)
    return datetime.min.replace(tzinfo=UTC)


def read_attempts(folder: Path, summary: Mapping[str, Any] | None = None) -> list[Attempt]:
    """Read the attempts of the run in `folder`, oldest first; torn or malformed lines are skipped. `summary`:
    summary.json, which has the seconds of an attempt that has not ended."""
    attempts: list[Attempt] = []
    for line in tables(text_of(folder / ATTEMPTS)):
        with suppress(KeyError, ValueError, TypeError, OverflowError):
            _take(attempts, line, datetime.fromisoformat(line["at"]))
    if attempts and attempts[-1].ended is None:
        with suppress(ValueError, TypeError):
            attempts[-1] = replace(attempts[-1], spent=float((summary or {}).get(SPENT, 0.0)))
    return attempts


def _take(attempts: list[Attempt], line: dict[str, Any], at: datetime) -> None:
    if at.tzinfo is None:
        raise ValueError("no time zone")
    step = int(line["step"])
    if line["event"] == "started":
        hosts = tuple(str(host) for host in line.get("hosts") or ())
        device, ranks = str(line.get("device") or ""), int(line.get("ranks") or 0)
        seconds = float(line.get("seconds") or 0.0)
        kind, threads = str(line.get("device_type") or ""), int(line.get("threads") or 0)
        where: dict[str, Any] = {
            "ranks": ranks,
            "hosts": hosts,
            "device": device,
            "device_type": kind,
            "threads": threads,
        }
        attempts.append(Attempt(len(attempts) + 1, at, step, seconds, **where))
    elif line["event"] == "saved" and attempts:
        attempts[-1].saves.append(
            Save(step, at, float(line["seconds"]), float(line["blocked_seconds"]), int(line["bytes"]))
        )
    elif line["event"] == "ended" and attempts:
        status, error = str(line["status"]), str(line.get("error") or "")
        spent = float(line.get("spent") or 0.0)
        attempts[-1] = replace(attempts[-1], ended=at, status=status, last=step, error=error, spent=spent)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
