"""Agree with all ranks on the counts of the next global batch, one step ahead.

One small all-reduce per step carries the counts that normalise the loss, the number of micro-batches and requests
to stop. It is issued for the next step before this one computes, so that no rank waits for it.
"""

import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Protocol, TypeVar

import numpy as np

from data_pipeline.errors import UserError
from data_pipeline.loader.packing import StepShare
from pretrain.distributed.world import SumMax, World
from pretrain.run.time_budget import NOT_MEASURED, Ahead, TimeBudget
from pretrain.training import rank_timing


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
    ahead: Ahead = NOT_MEASURED
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
            Ahead(used, bool(last)),
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
    counts = (*budget.announce(), *own)
    maxima = (len(share.micro_batches), stopping, 0, len(share.damage))
    return share, world.sum_max(counts, maxima), waited


def _of_all(lines: tuple[str, ...], world: World) -> tuple[str, ...]:
    """Merge the messages of all ranks without duplicates: ranks that share a stream find the same damage."""
    return tuple(sorted({line for said in world.gather(list(lines)) for line in said}))
