"""Log each start, checkpoint and end of a run's processes to lives.jsonl, and read it back.

A life is a run from its start to its end or its kill. A killed one cannot say so: the next one closes it, with what
summary.json last said. No life cuts the file, so that it tells of work that was done again, too.
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

LIVES = "lives.jsonl"
SPENT = "life_seconds"
"""Key of summary.json: seconds of the newest life. What a kill made undone was paid for, and is in here."""
LOST = "lost"
"""Status of a life that ended without a word: killed, crashed, or its machine is gone."""


class Save(NamedTuple):
    """A checkpoint that became whole."""

    step: int
    at: datetime
    seconds: float  # from its start until it was whole
    held: float  # of which training stood still, while tensors were copied
    bytes: int


@dataclass(frozen=True)
class Life:
    """One life; the newest one's `ended` is None while it goes on."""

    number: int
    started: datetime
    first: int  # the step that it went on from
    seconds: float = 0.0  # of training before it, in all lives
    ended: datetime | None = None
    status: str = "running"
    last: int | None = None  # the step that it came to
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
    """Seconds from the moment its engine stood to its last sign."""
    saves: list[Save] = field(default_factory=list)

    @property
    def device_hours(self) -> float:
        """GPU-hours; on CPUs the hours of all threads."""
        return self.spent * self.ranks * (1 if self.device_type == "cuda" else self.threads) / 3600

    def moment(self, seconds: float) -> datetime:
        """When the run had trained for so many seconds, all lives together, in this life."""
        return self.started + timedelta(seconds=max(0.0, seconds - self.seconds))


class Diary:
    """Writes lives.jsonl; on ranks other than the first it does nothing. A folder that is full for a while costs lines,
    not the run."""

    def __init__(self, folder: Path, writes: bool) -> None:
        self._path, self._writes = folder / LIVES, writes

    def started(self, step: int, summary: dict[str, Any], before: dict[str, Any]) -> None:
        """A life begins at `step`. `summary`: what it will write; `before`: what the life before last wrote."""
        lives = read_lives(self._path.parent) if self._writes else []
        if lives and lives[-1].ended is None:
            seconds = float(before.get("seconds", lives[-1].seconds))
            at = lives[-1].moment(seconds).isoformat(timespec="seconds")
            reached = max(int(before.get("step", 0)), lives[-1].first)
            spent = before.get(SPENT, 0.0)
            self._write({"event": "ended", "at": at, "status": LOST, "step": reached, "spent": spent})
        where = {name: summary.get(name) for name in ("ranks", "hosts", "device", "device_type", "threads")}
        self._write(
            {"event": "started", "at": _now(), "step": step, "seconds": summary.get("seconds", 0.0)} | where
        )

    def saved(self, step: int, seconds: float, held: float, size: int) -> None:
        """A checkpoint of `step` became whole."""
        self._write(
            {"event": "saved", "at": _now(), "step": step, "seconds": seconds, "held": held, "bytes": size}
        )

    def ended(self, step: int, summary: dict[str, Any]) -> None:
        """This life ends, in its own words."""
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


def read_lives(folder: Path, summary: Mapping[str, Any] | None = None) -> list[Life]:
    """The lives of the run in `folder`, oldest first; lines that are torn or make no sense are passed over. `summary`:
    what summary.json says, which knows what a life has spent that goes on, or was killed."""
    lives: list[Life] = []
    for line in tables(text_of(folder / LIVES)):
        with suppress(KeyError, ValueError, TypeError, OverflowError):
            _take(lives, line, datetime.fromisoformat(line["at"]))
    if lives and lives[-1].ended is None:
        with suppress(ValueError, TypeError):
            lives[-1] = replace(lives[-1], spent=float((summary or {}).get(SPENT, 0.0)))
    return lives


def _take(lives: list[Life], line: dict[str, Any], at: datetime) -> None:
    if at.tzinfo is None:
        raise ValueError("a moment without a zone")
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
        lives.append(Life(len(lives) + 1, at, step, seconds, **where))
    elif line["event"] == "saved" and lives:
        lives[-1].saves.append(
            Save(step, at, float(line["seconds"]), float(line["held"]), int(line["bytes"]))
        )
    elif line["event"] == "ended" and lives:
        status, error = str(line["status"]), str(line.get("error") or "")
        spent = float(line.get("spent") or 0.0)
        lives[-1] = replace(lives[-1], ended=at, status=status, last=step, error=error, spent=spent)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
