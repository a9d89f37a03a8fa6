"""This rank's share of each global batch in; the share with what all ranks agreed on for it, one step ahead, out.

One small all-reduce a step carries the counts that normalise the loss, the number of micro-batches and the wish to
stop. It is issued for the next step before this one computes, so that nobody waits for it.
"""

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import TypeVar, cast

import numpy as np

from data_pipeline.errors import UserError
from data_pipeline.packing import StepShare
from pretrain import pace
from pretrain.world import SumMax, World

Found = TypeVar("Found")
REFUSED = 2
"""Exit code after what a person can put right."""


@dataclass(frozen=True)
class Agreed:
    """What all ranks know of a global batch before they compute it."""

    examples: int
    tokens: int
    masked: int
    pairs: int
    squares: int
    """Sum of the squared lengths, for the operations of attention."""
    micro_batches: int
    """Of every rank: as many as the one with the most needs."""
    stop: bool
    """Some rank was asked to stop: this batch is left to the next life."""
    waited: float
    """Seconds that this rank waited for data before it could go on with this batch: for the shares it announced."""


class StopRequest:
    """Remembers SIGTERM, SIGUSR1 or Ctrl-C until the ranks agree on a step; a second signal changes nothing."""

    def __init__(self) -> None:
        self.received = ""
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            signal.signal(number, self._receive)

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        self.received = self.received or signal.Signals(number).name


def told_alike(world: World, check: Callable[[], Found]) -> Found:
    """What `check` finds. All ranks call this; where it is refused on some, it is refused on all, and in one line:
    the first rank raises that UserError, the others end with its exit code and say nothing."""
    found, refused = None, None
    try:
        found = check()
    except UserError as error:
        refused = [error.what, error.where, error.expected, error.remedy]
    told = world.gather(refused)
    ranks = [rank for rank, line in enumerate(told) if line]
    if ranks:
        if world.rank != 0:
            raise SystemExit(REFUSED)
        what, where, expected, remedy = told[ranks[0]]
        if told[0] is None:
            what = f"{what} (on rank {ranks[0]}{f' and {len(ranks) - 1} more' if ranks[1:] else ''} of {world.size})"
        raise UserError(what, where=where, expected=expected, remedy=remedy)
    return cast(Found, found)


def agreed(
    shares: Iterator[StepShare], world: World, stop: StopRequest
) -> Iterator[tuple[StepShare, Agreed]]:
    """Each share with its agreement; the next share's is under way while the caller works on this one."""
    share, handle, waited = _announce(shares, world, stop)
    while True:
        (examples, tokens, masked, pairs, squares), (micro_batches, stopping, unreadable) = handle.wait()
        if isinstance(share, UserError):
            raise share
        if unreadable:
            raise RuntimeError("another rank could not read its data")
        following, next_handle, for_next = _announce(shares, world, stop)
        waited += for_next
        yield (
            share,
            Agreed(examples, tokens, masked, pairs, squares, micro_batches, bool(stopping), waited),
        )
        share, handle, waited = following, next_handle, 0.0


def _announce(
    shares: Iterator[StepShare], world: World, stop: StopRequest
) -> tuple[StepShare | UserError, SumMax, float]:
    """A share that cannot be read is an error only once it is needed: the run may end before it."""
    started = pace.clock()
    stopping = int(bool(stop.received))
    try:
        share = next(shares)
    except UserError as error:
        return error, world.sum_max((0, 0, 0, 0, 0), (0, stopping, 1)), 0.0
    waited = pace.clock() - started
    squares = sum(int(np.square(m.lengths, dtype=np.int64).sum()) for m in share.micro_batches)
    counts = (share.examples, share.tokens, share.masked, share.pairs, squares)
    return share, world.sum_max(counts, (len(share.micro_batches), stopping, 0)), waited
