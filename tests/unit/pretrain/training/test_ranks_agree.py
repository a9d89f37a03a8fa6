"""One rank's view of what all decide together, the other ranks played by a world that answers for them."""

import math
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pretrain.config.settings import RunConfig
from pretrain.distributed.world import World
from pretrain.objectives.registry import with_defaults
from pretrain.training.guard import Guard
from pretrain.training.progress import Position, StopRequest, with_batch_counts


@dataclass(frozen=True)
class WithAnother(World):
    """Rank 0 of two; `sums` and `maxima` are what the other adds to each message, in order."""

    size: int = 2
    sums: list[list[float]] = field(default_factory=list)
    maxima: list[list[int]] = field(default_factory=list)

    def sum_max(self, sums: Sequence[float], maxima: Sequence[int]) -> Any:
        theirs = self.sums.pop(0) if self.sums else [0] * len(sums)
        most = self.maxima.pop(0) if self.maxima else [0] * len(maxima)
        both = [a + b for a, b in zip(sums, theirs, strict=True)]
        return Answer((both, [max(a, b) for a, b in zip(maxima, most, strict=True)]))


@dataclass
class Answer:
    """A message that has arrived."""

    said: tuple[list[float], list[int]]

    def wait(self) -> tuple[list[float], list[int]]:
        return self.said


@pytest.fixture
def stop() -> Iterator[StopRequest]:
    handlers = {number: signal.getsignal(number) for number in StopRequest.SIGNALS}
    yield StopRequest()
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_a_signal_to_another_rank_stops_this_one_at_the_same_batch(stop: StopRequest) -> None:
    world = WithAnother(maxima=[[0, 0, 0, 0], [0, 1, 0, 0], [0, 1, 0, 0]])
    share = SimpleNamespace(examples=2, tokens=9, masked=3, pairs=2, micro_batches=[], damage=())
    steps = with_batch_counts(repeat(share), world, stop, with_defaults("bert"))  # type: ignore[type-var]
    assert [next(steps)[1].stop for _ in range(3)] == [False, True, True]
    assert stop.received == ""


def test_a_spike_of_another_rank_is_one_here() -> None:
    config = RunConfig()
    config.train.on_spike, config.train.spike_window, config.train.spike_sigma = "skip", 6, 3.0
    where = Position(losses=[5.0, 5.1, 4.9, 5.0, 5.2, 4.8])
    guard = Guard(config, where, WithAnother(sums=[[5.0], [40.0], [5.0]]), "fp32")

    def judged(loss: float) -> bool:
        guard.add(torch.tensor(loss))
        return guard.accepts()

    assert [judged(5.0), judged(5.0), judged(5.1)] == [True, False, True]
    assert math.isclose(guard._loss, 5.05, rel_tol=1e-6)
