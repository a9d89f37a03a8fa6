"""Decide from its loss what becomes of each global batch: accepted, skipped, rolled back, or the end of the run.

Two things are judged. A gradient that is not finite (train.on_nan): the engine has not applied it. A loss far above
those before it (train.on_spike), as OLMo's SkipStepOptimizer has it: more than `spike_sigma` standard deviations above
the mean of the last `spike_window` accepted ones. All ranks see the same numbers, so all decide the same.
"""

import math
import statistics
from collections import Counter

import torch
from torch import Tensor

from data_pipeline.errors import UserError
from pretrain.config.settings import RunConfig
from pretrain.distributed.world import World
from pretrain.training.resume import Position

MOST_IN_A_ROW = 10
"""Batches skipped one after the other, or returns to one checkpoint, that end a run: it is not going to recover."""
SKIP, ROLLBACK = "skip", "rollback"


class Guard:
    """Judges one batch after the other: `add` each micro-batch's loss, `accepts` before the last backward, `refused`
    for a batch that was not applied."""

    def __init__(self, config: RunConfig, position: Position, world: World, precision: str) -> None:
        self._train, self._where, self._world = config.train, config.run.dir, world
        self._losses = position.losses  # of accepted batches: kept in the checkpoint, with the position
        self._scaled = precision == "fp16"
        self._in_a_row, self._returns = 0, Counter[int]()
        self._sum: Tensor | None = None
        self._loss, self._is_spike = 0.0, False

    @property
    def may_roll_back(self) -> bool:
        """Whether there has to be a checkpoint to return to."""
        return ROLLBACK in (self._train.on_nan, self._train.on_spike)

    def add(self, loss: Tensor) -> None:
        """This rank's part of the loss, W * sum / N, of one micro-batch."""
        if self._train.on_spike != "off":
            loss = loss.detach().double()
            self._sum = loss if self._sum is None else self._sum + loss

    def accepts(self) -> bool:
        """Whether the loss of the global batch, all micro-batches added, is no spike. All ranks call this; it waits
        for the device and the other ranks, unless train.on_spike=off."""
        if self._sum is None:
            return True
        sums, _ = self._world.sum_max([float(self._sum)], []).wait()
        self._sum, self._loss = None, sums[0] / self._world.size
        self._is_spike = self._loss > self._limit()
        return not self._is_spike

    def accepted(self) -> None:
        """The batch was applied."""
        self._in_a_row = 0
        if self._train.on_spike != "off" and math.isfinite(self._loss):
            self._losses.append(self._loss)
            del self._losses[: -self._train.spike_window]

    def refused(self, position: Position, empty: bool) -> tuple[str, str]:
        """For a batch that was not applied and is counted: SKIP or ROLLBACK, and why; `empty`: for want of examples.
        Raises UserError where the settings want the run to stop, or after too many in a row."""
        self._in_a_row += 1
        batch = position.batch - 1
        what = f"the gradient of batch {batch} is not finite"
        action, key = (SKIP if self._scaled else self._train.on_nan), "train.on_nan"
        if empty:
            what, action = f"no example of batch {batch} can be read", SKIP
        elif self._is_spike:
            what = f"the loss of batch {batch} is a spike: {self._loss:.4g} is above {self._limit():.4g}"
            action, key = self._train.on_spike, "train.on_spike"
        self._is_spike = False
        if self._in_a_row >= MOST_IN_A_ROW:
            raise UserError(
                f"{what}, the {self._in_a_row}th batch in a row that was skipped, after step {position.step}",
                where=self._where,
                remedy="" if empty else "lower optim.lr, or use train.precision=bf16 or fp32",
            )
        if action == "stop":
            raise UserError(
                f"{what}, after step {position.step}",
                where=self._where,
                remedy=f"or set {key}=skip or rollback",
            )
        return action, what

    def rolled_back(self, position: Position) -> None:
        """The run is at the checkpoint of this position again. Raises UserError if that happens too often."""
        self._losses = position.losses
        self._returns[position.step] += 1
        if self._returns[position.step] >= MOST_IN_A_ROW:
            raise UserError(
                f"rolled back to step {position.step} {MOST_IN_A_ROW} times",
                where=self._where,
                remedy="lower optim.lr, or look at the data of the skipped batches",
            )

    def _limit(self) -> float:
        """A loss above this is a spike."""
        if len(self._losses) < self._train.spike_window // 2:
            return math.inf
        mean = statistics.fmean(self._losses)
        return mean + self._train.spike_sigma * statistics.pstdev(self._losses, mean)


def poisoned(loss: Tensor) -> Tensor:
    """A loss whose gradient is NaN throughout: DeepSpeed then drops the whole step, at every stage and precision, with
    what earlier micro-batches have left in its buffers."""
    return loss * torch.nan
