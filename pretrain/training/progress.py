"""Agree with all ranks on the counts of each global batch, track a run's position, and tell where its phases end.

One small all-reduce per step carries the counts that normalise the loss, the number of micro-batches and requests to
stop. It is issued for the next step before this one computes, so that no rank waits for it.

A `Position` counts the batches and the accepted updates of a run. A checkpoint's state holds it, and what is read from
there is validated.
"""

import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from types import FrameType
from typing import Any, Protocol, TypeVar

import numpy as np

from data_pipeline.errors import UserError
from data_pipeline.loader.packing import StepShare
from pretrain.checkpoint.store import Checkpoint, Damaged
from pretrain.config.phases import Phase
from pretrain.distributed.world import SumMax, World, raise_on_all_ranks
from pretrain.optim.schedule import Progress
from pretrain.preflight.check_run import Plan
from pretrain.run.files import is_count, is_number
from pretrain.run.time_budget import NOT_MEASURED, BudgetForecast, TimeBudget, shares_of
from pretrain.training import rank_timing

# The counts of the next global batch, on which all ranks agree one step ahead.


@dataclass(frozen=True)
class BatchCounts:
    """What all ranks know of a global batch before they compute it."""

    examples: int
    tokens: int
    masked: int
    """Rows of the vocabulary projection, for its operations."""
    squares: int
    """Sum of the squared lengths, for the operations of attention."""
    terms: Mapping[str, int]
    """Loss term -> number of predictions that it is the mean of."""
    micro_batches: int
    """Micro-batches per rank: the maximum over ranks."""
    stop: bool
    """Whether any rank was asked to stop: this batch is left to the next attempt."""
    waited: float
    """Seconds that this rank waited for data (the announced shares) before this batch."""
    budget: BudgetForecast = NOT_MEASURED
    """With train.minutes: the share of the time that is used when the update begins, by the first rank's clock."""
    damage: tuple[str, ...] = ()
    """Messages about blocks of examples that some rank found missing or changed, and that are skipped."""


Share = TypeVar("Share", bound=StepShare)


class CountsTerms(Protocol):
    """The counts of a share that an objective gives before the step: see pretrain/objectives/base.py."""

    terms: tuple[str, ...]

    def counts(self, share: StepShare) -> dict[str, int]: ...


class StopRequest:
    """Remembers SIGTERM, SIGUSR1 or Ctrl-C until the ranks agree on a step; a second signal changes nothing."""

    SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)

    def __init__(self) -> None:
        self.received = ""
        for number in self.SIGNALS:
            signal.signal(number, self._receive)
        signal.pthread_sigmask(
            signal.SIG_UNBLOCK, self.SIGNALS
        )  # launch/ranks.py starts ranks with them blocked

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        self.received = self.received or signal.Signals(number).name


def with_batch_counts(
    shares: Iterator[Share],
    world: World,
    stop: StopRequest,
    objective: CountsTerms,
    budget: TimeBudget | None = None,
) -> Iterator[tuple[Share, BatchCounts]]:
    """Yield each share with the counts of its global batch, with terms counted by `objective`, and with what the first
    rank's `budget` announces. The next share's all-reduce runs while the caller works on this one."""
    budget = budget or TimeBudget()
    share, handle, waited = _announce(shares, world, stop, objective, budget)
    while True:
        (used, last, examples, tokens, masked, squares, *of_terms), maxima = handle.wait()
        micro_batches, stopping, unreadable, damaged = maxima
        if isinstance(share, UserError):
            raise share
        if unreadable:
            raise RuntimeError("another rank could not read its data")
        damage = _of_all(share.damage, world) if damaged else ()
        following, next_handle, for_next = _announce(shares, world, stop, objective, budget)
        waited += for_next
        terms = dict(zip(objective.terms, of_terms, strict=True))
        counts = BatchCounts(
            examples,
            tokens,
            masked,
            squares,
            terms,
            micro_batches,
            bool(stopping),
            waited,
            BudgetForecast(used, bool(last)),
            damage,
        )
        yield share, counts
        share, handle, waited = following, next_handle, 0.0


def _announce(
    shares: Iterator[Share], world: World, stop: StopRequest, objective: CountsTerms, budget: TimeBudget
) -> tuple[Share | UserError, SumMax, float]:
    """Start the all-reduce of a share's counts. An unreadable share is an error only once needed: the run may end
    first."""
    started = rank_timing.clock()
    stopping = int(bool(stop.received))
    try:
        share = next(shares)
    except UserError as error:
        return error, world.sum_max([0] * (6 + len(objective.terms)), (0, stopping, 1, 0)), 0.0
    waited = rank_timing.clock() - started
    squares = sum(int(np.square(m.lengths, dtype=np.int64).sum()) for m in share.micro_batches)
    terms = objective.counts(share)
    own = (share.examples, share.tokens, share.masked, squares, *(terms[name] for name in objective.terms))
    counts = (*budget.forecast(), *own)
    maxima = (len(share.micro_batches), stopping, 0, len(share.damage))
    return share, world.sum_max(counts, maxima), waited


def _of_all(lines: tuple[str, ...], world: World) -> tuple[str, ...]:
    """Merge the messages of all ranks without duplicates: ranks that share a stream find the same damage."""
    return tuple(sorted({line for said in world.gather(list(lines)) for line in said}))


# The position of a run, and where its phases end.


@dataclass
class Position:
    """Progress of a run. `batch`: global batches consumed. `step`: updates accepted."""

    batch: int = 0
    step: int = 0
    skipped: list[int] = field(default_factory=list)
    """Batches whose update was not accepted or was taken back (overflow, NaN, spike, no readable example)."""
    examples: int = 0
    tokens: int = 0
    damaged: int = 0
    """Examples skipped because their blocks are missing or changed (data.on_damage=skip)."""
    losses: list[float] = field(default_factory=list)
    """Losses of the last accepted batches, if train.on_spike is on, so that a resumed run finds the same spikes."""
    phase: int = 0
    """Index of the current phase, from 0; at the end of a phase, still that phase."""
    phase_batch: int = 0
    """Batches consumed before this phase, which starts its own data order."""
    phase_examples: int = 0
    phase_step: int = 0
    """Updates accepted before this phase."""
    elapsed: float = 0.0
    """Seconds of train.minutes that are used in this phase, by the first rank's clock; other ranks do not read it."""
    positions_trained: int = 0
    """How many rows of the tables of learned positions have been trained: the length of the longest examples, or all
    that a folder brought. 0: unknown, as in checkpoints of older versions."""
    spent: bool = False
    """Whether train.minutes of this phase are over: its last update was accepted."""

    def advance(self, applied: bool, counts: BatchCounts, missing: int = 0) -> None:
        """Count a consumed batch, of which `missing` examples could not be read."""
        if applied:
            self.step += 1
            self.spent = counts.budget.last
        else:
            self.skipped.append(self.batch)
        self.batch += 1
        self.examples += counts.examples
        self.tokens += counts.tokens
        self.damaged += missing

    @property
    def batch_of_phase(self) -> int:
        """Batches consumed in this phase."""
        return self.batch - self.phase_batch


def position_of(checkpoint: Checkpoint) -> Position:
    """Return the position at which a checkpoint was saved. Raises Damaged if resume.save did not write its state."""
    state = checkpoint.state
    wrong = [key for key, right in _STATE.items() if not right(state.get(key))]
    if not wrong:
        kinds: dict[str, Callable[[Any], bool]] = {f.name: is_count for f in fields(Position)}
        kinds |= {"skipped": _counts, "losses": _numbers, "elapsed": is_number, "spent": _flag}
        found = state["position"]
        wrong = [key for key in found if key not in kinds or not kinds[key](found[key])]
    if wrong:
        raise Damaged(
            f"its state does not hold: {', '.join(sorted(map(str, wrong))[:5])}",
            where=checkpoint.folder,
            expected="what a run saves",
        )
    return Position(**state["position"])


def time_budget(plan: Plan, position: Position, world: World) -> TimeBudget:
    """Return the phase's budget of time, from what is used of it on; without train.minutes it measures nothing. All
    ranks call this. Raises UserError if the shares to replay cannot be read."""
    train, phase = plan.phase.config.train, plan.phase

    def read() -> TimeBudget:
        measures = world.rank == 0  # another rank may not see the folder, and its clock is not asked
        replay = shares_of(train.replay, phase.name) if train.replay and measures else ()
        return TimeBudget(train.minutes, position.elapsed, measures, replay, position.batch_of_phase)

    return raise_on_all_ranks(world, read)


def progress(phase: Phase, position: Position, counts: BatchCounts) -> Progress:
    """Return how much of its schedule the run has done before the update of this batch."""
    if phase.config.train.minutes:
        return Progress(counts.budget.share, 1.0, in_updates=False)
    first = phase.schedule_first if phase.spans_run else position.phase_step
    return Progress(position.step - first, phase.schedule_steps)


def is_over(phase: Phase, position: Position) -> bool:
    """Return whether the run is behind the last update of this phase. All ranks know the same."""
    if position.phase != phase.number:
        return position.phase > phase.number
    if phase.config.train.minutes:
        return position.spent
    return position.step - position.phase_step >= phase.config.train.steps


def run_is_over(plans: list[Plan], position: Position) -> bool:
    """Return whether the run is behind the last update of its last phase."""
    return is_over(plans[-1].phase, position)


def reached(stop_after: int, position: Position) -> bool:
    """Return whether the run is at run.stop_after; 0: it does not stop."""
    return 0 < stop_after <= position.step


def phases_left(plans: list[Plan], position: Position, stop_after: int) -> Iterator[Plan]:
    """Yield the unfinished phases, each after the previous one has finished, unless the run stops before; of a run
    without steps the first, which saves the starting weights."""
    if plans[-1].phase.last == 0:
        yield plans[0]
        return
    for plan in plans:
        if is_over(plan.phase, position):
            continue
        if reached(stop_after, position):
            return
        yield plan
        if not is_over(plan.phase, position):
            return


def _counts(value: object) -> bool:
    return isinstance(value, list) and all(map(is_count, value))


def _flag(value: object) -> bool:
    return isinstance(value, bool)


def _numbers(value: object) -> bool:
    return isinstance(value, list) and all(type(one) in (int, float) for one in value)


def _table(value: object) -> bool:
    return isinstance(value, Mapping)


def _loader(value: object) -> bool:
    if not isinstance(value, Mapping) or not is_count(value.get("batch")) or "data" not in value:
        return False
    return _table(value.get("order")) and isinstance(value.get("masking"), Mapping | None)


_STATE: dict[str, Callable[[Any], bool]] = {
    "identity": _table,
    "position": _table,
    "loader": _loader,
    "updates": is_count,
    "scaler": lambda value: _table(value) and _numbers(list(value.values())),
    "conditions": _table,
    "phase": lambda value: value is None or _table(value),
}
