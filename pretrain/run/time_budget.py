"""Measure the share of a time budget that training has used, on the first rank, or replay the shares of a finished run.

The clock runs during steps, including waits for data; it stands still while the run starts, compiles, evaluates, rolls
back, and waits for checkpoints. Ranks have clocks of their own, so the first rank's share travels to all ranks with the
counts of the next batch (training/batch_counts.py). That message leaves one step ahead: it holds what the clock is
expected to show when the batch begins, one recent step from now.
"""

import hashlib
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from data_pipeline.errors import UserError
from data_pipeline.io.files import canonical_json
from pretrain.run.metrics_file import METRICS, read_metrics
from pretrain.run.tolerant_json import number

clock = time.monotonic
RECENT_STEPS = 5
"""Newest steps of which the shortest is the expected length of the next one: a slow one must not end a run early."""
SHARE, SHARES = "budget_share", "budget_shares"
"""Fields of a line of metrics.jsonl: the share used after the newest update, and the share at which the update of each
batch since the line before began (null: it was skipped)."""

Shares = Sequence[float | None]
"""The share of the budget at which the update of each batch of a phase began; None: it was skipped."""


class Ahead(NamedTuple):
    """What the first rank expects of the next batch."""

    share: float = 0.0
    """The share of the budget that is used when its update begins, 0 to 1."""
    last: bool = False
    """Whether no time is left for another update."""


NOT_MEASURED = Ahead()


class TimeBudget:
    """The minutes of training that a phase has; with 0 minutes there is no budget, and nothing is measured."""

    def __init__(
        self,
        minutes: float = 0.0,
        elapsed: float = 0.0,
        measures: bool = True,
        replay: Shares = (),
        batch: int = 0,
    ) -> None:
        """Start with `elapsed` seconds used. `measures`: on the first rank. `replay`: shares to use in place of the
        clock's, from the phase's batch number `batch` on."""
        self._seconds, self._measures = 60 * minutes, measures and minutes > 0
        self._elapsed, self._since = elapsed, float("nan")
        self._running, self._announced, self._share = False, False, 0.0
        self._steps: deque[float] = deque(maxlen=RECENT_STEPS)
        self._replay, self._batch = replay, batch

    @property
    def elapsed(self) -> float:
        """Seconds of training so far, including earlier attempts."""
        return self._elapsed + (clock() - self._since if self._running else 0.0)

    def start(self) -> None:
        """Start a step, which ends one that was not accepted."""
        self.stop()
        if self._measures:
            self._since, self._running = clock(), True

    def stop(self) -> None:
        """End the step; without one, do nothing."""
        if self._running:
            self._steps.append(clock() - self._since)
            self._elapsed += self._steps[-1]
            self._running = False

    def announce(self) -> Ahead:
        """Return what to expect of the next batch, once for each batch, while the one before it has yet to be computed.
        Ranks that do not measure return zeros, which are added to the first rank's."""
        if not self._measures:
            return NOT_MEASURED
        if self._replay:
            return self._replayed()
        step, waiting = min(self._steps, default=0.0), int(self._announced)
        begins = self.elapsed + waiting * step
        self._announced = True
        self._share = min(max(self._share, begins / self._seconds), 1.0)
        return Ahead(self._share, begins + step >= self._seconds)

    def _replayed(self) -> Ahead:
        number, self._batch = self._batch, self._batch + 1
        share = self._replay[number] if number < len(self._replay) else 1.0
        self._share = self._share if share is None else share
        return Ahead(self._share, number >= len(self._replay) - 1)


class ShareLog:
    """Collect the shares of accepted updates for the lines of metrics.jsonl."""

    def __init__(self, batch: int = 0) -> None:
        self._first, self._shares = batch, dict[int, float]()

    def add(self, batch: int, share: float) -> None:
        """Add the share of the batch with this number."""
        self._shares[batch] = share

    def take(self, batch: int) -> list[float | None]:
        """Return the shares of the batches since the last call, before the number `batch`."""
        taken = [self._shares.pop(one, None) for one in range(self._first, batch)]
        self._first = batch
        return taken


def logged_shares(where: str) -> dict[str, Shares]:
    """Read the shares of every phase ("" without phases) that has a budget of time, from a run folder or its
    metrics.jsonl: of all its batches, from its first. Raises UserError unless each phase reaches the end of its budget
    and the log has the share of every update."""
    path = Path(where)
    folder = path.parent if path.name == METRICS else path
    found: dict[str, list[float | None]] = {}
    used: dict[str, float] = {}
    step, batch = 0, 0  # of the line before
    for line in read_metrics(folder):
        end = number(line.get("batch"))
        if end is None:
            continue  # an evaluation
        then, until = int(line.get("step", 0)), int(end)
        if SHARE in line or SHARES in line:
            logged, phase = line.get(SHARES), str(line.get("phase", ""))
            shares = list(map(number, logged)) if isinstance(logged, list) else []
            if len(shares) - shares.count(None) < then - step or len(shares) > until - batch:
                raise UserError(
                    f"lacks shares of the updates from step {step + 1:,} to {then:,}",
                    where=folder / METRICS,
                    expected="all lines of a finished run with train.minutes",
                    remedy="a run whose log was cut cannot be replayed",
                )
            rolled_back = [None] * (until - batch - len(shares))  # their lines are gone, as their updates are
            found.setdefault(phase, []).extend(rolled_back + shares)
            used[phase] = number(line.get(SHARE)) or 0.0
        step, batch = then, until
    unfinished = [phase for phase, share in used.items() if share < 1]
    if not found or unfinished:
        what = f"phase {unfinished[0]} is not finished" if unfinished and unfinished[0] else "is not finished"
        raise UserError(
            what if found else "has no logged shares of a time budget",
            where=where,
            expected="the folder of a finished run with train.minutes",
        )
    return dict(found)


def shares_of(where: str, phase: str) -> Shares:
    """Return the logged shares of one phase. Raises UserError as `logged_shares` does, and where that run has no phase
    of the name with a budget of time."""
    return _with_phase(where, phase)[phase]


def shares_digest(where: str, phase: str) -> str:
    """Return the SHA-256 of the shares in a run folder, which decide what a replay trains; empty if `where` is. Raises
    UserError as `shares_of` does for the phase that is to repeat its own."""
    return hashlib.sha256(canonical_json(_with_phase(where, phase))).hexdigest() if where else ""


def _with_phase(where: str, phase: str) -> dict[str, Shares]:
    found = logged_shares(where)
    if phase not in found:
        missing, *there = (f"phase {name}" if name else "a run without phases" for name in (phase, *found))
        raise UserError(
            f"has no logged shares of {missing}", where=where, expected=f"those of {', '.join(there)}"
        )
    return found
