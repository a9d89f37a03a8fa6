"""Measure the share of a time budget that training has used, or replay a finished run's, and estimate the time left.

The first rank measures. Its clock runs during steps, including waits for data; it stands still while the run starts,
compiles, evaluates, rolls back, and waits for checkpoints. Ranks have clocks of their own, so the first rank's share
travels to all ranks with the counts of the next batch (training/progress.py). That message leaves one step ahead: it
holds what the clock is expected to show when the batch begins, one recent step from when it is sent.
"""

import hashlib
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from data_pipeline.errors import UserError
from data_pipeline.io.files import canonical_json
from data_pipeline.loader.batch_sizes import BatchSizes
from pretrain.run.files import METRICS, number
from pretrain.run.metrics_log import read_metrics

clock = time.monotonic
RECENT_STEPS = 5
"""Newest steps of which the shortest is the expected length of the next one: a slow one must not end a run early."""
SHARE, SHARES = "budget_share", "budget_shares"
"""Fields of a line of metrics.jsonl: the share used after the newest update, and the share at which the update of each
batch since the line before began (null: it was skipped)."""

Shares = Sequence[float | None]
"""The share of the budget at which the update of each batch of a phase began; None: it was skipped."""


class BudgetForecast(NamedTuple):
    """What the first rank expects of the next batch."""

    share: float = 0.0
    """The share of the budget that is used when its update begins, 0 to 1."""
    last: bool = False
    """Whether no time is left for another update."""


NOT_MEASURED = BudgetForecast()


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
        self._running, self._has_forecast, self._share = False, False, 0.0
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

    def forecast(self) -> BudgetForecast:
        """Return what to expect of the next batch, once for each batch, while the one before it has yet to be computed.
        Ranks that do not measure return zeros, which are added to the first rank's."""
        if not self._measures:
            return NOT_MEASURED
        if self._replay:
            return self._replayed()
        step, waiting = min(self._steps, default=0.0), int(self._has_forecast)
        begins = self.elapsed + waiting * step
        self._has_forecast = True
        self._share = min(max(self._share, begins / self._seconds), 1.0)
        return BudgetForecast(self._share, begins + step >= self._seconds)

    def _replayed(self) -> BudgetForecast:
        number, self._batch = self._batch, self._batch + 1
        share = self._replay[number] if number < len(self._replay) else 1.0
        self._share = self._share if share is None else share
        return BudgetForecast(self._share, number >= len(self._replay) - 1)


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
    by_phase: dict[str, list[float | None]] = {}
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
            by_phase.setdefault(phase, []).extend(rolled_back + shares)
            used[phase] = number(line.get(SHARE)) or 0.0
        step, batch = then, until
    unfinished = [phase for phase, share in used.items() if share < 1]
    if not by_phase or unfinished:
        what = f"phase {unfinished[0]} is not finished" if unfinished and unfinished[0] else "is not finished"
        raise UserError(
            what if by_phase else "has no logged shares of a time budget",
            where=where,
            expected="the folder of a finished run with train.minutes",
        )
    return dict(by_phase)


def shares_of(where: str, phase: str) -> Shares:
    """Return the logged shares of one phase. Raises UserError as `logged_shares` does, and where that run has no phase
    of the name with a budget of time."""
    return _with_phase(where, phase)[phase]


def shares_digest(where: str, phase: str) -> str:
    """Return the SHA-256 of the shares in a run folder, which decide what a replay trains; empty if `where` is. Raises
    UserError as `shares_of` does for the phase that is to repeat its own."""
    return hashlib.sha256(canonical_json(_with_phase(where, phase))).hexdigest() if where else ""


def _with_phase(where: str, phase: str) -> dict[str, Shares]:
    by_phase = logged_shares(where)
    if phase not in by_phase:
        missing, *there = (f"phase {name}" if name else "a run without phases" for name in (phase, *by_phase))
        raise UserError(
            f"has no logged shares of {missing}", where=where, expected=f"those of {', '.join(there)}"
        )
    return by_phase


# Estimate the remaining seconds of a run: of a phase with train.minutes by its minutes, of others by the tokens of
# their steps.


def seconds_left(
    step: int,
    a_step: float,
    phases: Sequence[Mapping[str, Any]],
    measured: float | None = None,
    newest: Mapping[str, Any] | None = None,
) -> float:
    """Return the remaining seconds of a run that has done `step` steps, at `a_step` seconds per step, measured up to
    the step `measured` (None: up to `step`). `phases`: from `phases_in`; other steps than the measured one are scaled
    by their tokens, and of a phase with train.minutes the minutes count. `newest`: the newest figures."""
    here = _index_of_phase(step, phases)
    if here is None:
        return 0.0
    known = _index_of_phase(step if measured is None else measured, phases)
    there = phases[here if known is None else known]
    at = max(step if measured is None else measured, _of(there, "first") + 1)
    size = _tokens(there, at - 1, at)
    left = 0.0
    for place, phase in enumerate(phases[here:]):
        if phase.get("minutes"):
            left += 0.0 if phase.get("last") is not None else _of_budget(phase, newest or {})
            continue
        first, last = _first_and_last(phase, step, started=not place)
        if first < last:
            left += a_step * (_tokens(phase, first, last) / size if size else last - first)
    return left


def phases_in(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the phases of a run according to summary.json; without phases, the run as the only one. Empty if it says
    nothing of how long the run is."""
    if isinstance(phases := summary.get("phases"), list) and phases:
        return [phase for phase in phases if isinstance(phase, dict)]
    steps, minutes = number(summary.get("steps")), number(summary.get("minutes"))
    if steps is None and minutes is None:
        return []
    return [{"first": 0, "last": steps, "minutes": minutes}]


def phase_at(step: float, phases: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the phase of the run's step `step`, counted from 1; None if there is none."""
    place = _index_of_phase(step, phases)
    return None if place is None else phases[place]


def _index_of_phase(step: float, phases: Sequence[Mapping[str, Any]]) -> int | None:
    unknown = float("inf")
    ends = [unknown if phase.get("last", 0) is None else _of(phase, "last") for phase in phases]
    return next((place for place, end in enumerate(ends) if step <= end), None)


def _first_and_last(phase: Mapping[str, Any], step: int, started: bool) -> tuple[float, float]:
    """Return the steps between which the phase's remaining ones are. Where an earlier phase has train.minutes it is
    unknown when this one starts: it is then as long as it says, from step 0."""
    begin, last = _of(phase, "first"), number(phase.get("last"))
    end = begin + _of(phase, "steps") if last is None else last
    known = started or phase.get("first") is not None
    return (max(begin, step) if known else begin), end


def _of_budget(phase: Mapping[str, Any], newest: Mapping[str, Any]) -> float:
    """Return the seconds that are left of a phase's minutes: all, where the newest figures are of another phase."""
    here = newest.get("phase", "") == phase.get("name", "")
    used = number(newest.get(SHARE)) or 0.0
    return 60 * _of(phase, "minutes") * (1 - (used if here else 0.0))


def _tokens(phase: Mapping[str, Any], first: float, last: float) -> float:
    """Return the maximum number of tokens in the phase's steps from `first` up to `last`, of the run."""
    names = ("global_batch", "streams", "batch_ramp_from", "batch_ramp")
    full, streams, *ramp = (int(_of(phase, name)) for name in names)
    sizes = BatchSizes(full, streams, *ramp) if streams else BatchSizes(full, 1)
    begin = _of(phase, "first")
    low, high = (sizes.before(max(0, int(step - begin))) for step in (first, last))
    return (high - low) * _of(phase, "sequence_length")


def _of(phase: Mapping[str, Any], name: str) -> float:
    return number(phase.get(name)) or 0.0
