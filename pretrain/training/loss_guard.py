"""Decide from each global batch's loss whether to accept it, skip it, roll back or end the run.

Two checks: a gradient that is not finite (train.on_nan), which the engine has not applied; and a loss spike
(train.on_spike), as in OLMo's SkipStepOptimizer: more than `spike_sigma` standard deviations above the mean of the
last `spike_window` accepted losses. All ranks see the same numbers, so all decide the same.
"""

import math
import statistics
from collections import Counter

import torch
from torch import Tensor

from data_pipeline.errors import UserError
from pretrain.config.settings import RunConfig
from pretrain.distributed.world import World
from pretrain.training.progress import Position

MOST_IN_A_ROW = 10
"""Consecutive skipped batches, or rollbacks to one checkpoint, after which the run ends as unrecoverable."""
SKIP, ROLLBACK = "skip", "rollback"


class Guard:
    """Checks each batch in turn: `add` each micro-batch's loss, `accepts` before the last backward, `refused` for a
    batch that was not applied."""

    def __init__(self, config: RunConfig, position: Position, world: World, precision: str) -> None:
        self._train, self._where, self._world = config.train, config.run.dir, world
        self._losses = position.losses  # of accepted batches: kept in the checkpoint, with the position
        self._scaled = precision == "fp16"
        self._in_a_row, self._returns = 0, Counter[int]()
        self._sum: Tensor | None = None
        self._loss, self._is_spike = 0.0, False

    @property
    def may_roll_back(self) -> bool:
        """Whether a checkpoint is needed to roll back to."""
        return ROLLBACK in (self._train.on_nan, self._train.on_spike)

    def add(self, loss: Tensor) -> None:
        """Add this rank's part of one micro-batch's loss, W * sum / N."""
        if self._train.on_spike != "off":
            loss = loss.detach().double()
            self._sum = loss if self._sum is None else self._sum + loss

    def accepts(self) -> bool:
        """Return whether the global batch's loss, summed over all micro-batches, is not a spike. All ranks call
        this; it waits for the device and the other ranks unless train.on_spike=off."""
        if self._sum is None:
            return True
        sums, _ = self._world.sum_max([float(self._sum)], []).wait()
        self._sum, self._loss = None, sums[0] / self._world.size
        self._is_spike = self._loss > self._limit()
        return not self._is_spike

    def accepted(self, whole: bool = True) -> None:
        """Record that the batch was applied. Its loss is one to compare with if it is `whole`: if each of its terms had
        something to predict, which a batch without masked tokens has not."""
        self._in_a_row = 0
        if whole and self._train.on_spike != "off" and math.isfinite(self._loss):
            self._losses.append(self._loss)
            del self._losses[: -self._train.spike_window]

    def refused(self, position: Position, empty: bool) -> tuple[str, str]:
        """Return SKIP or ROLLBACK, and why, for a counted batch that was not applied; `empty`: it had no examples.
        Raises UserError if the settings say to stop, or after too many in a row."""
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
        """Record a rollback to the checkpoint of this position. Raises UserError if that happens too often."""
        self._losses = position.losses
        self._returns[position.step] += 1
        if self._returns[position.step] >= MOST_IN_A_ROW:
            raise UserError(
                f"rolled back to step {position.step} {MOST_IN_A_ROW} times",
                where=self._where,
                remedy="lower optim.lr, or look at the data of the skipped batches",
            )

    def _limit(self) -> float:
        """Return the loss above which a batch is a spike."""
        if len(self._losses) < self._train.spike_window // 2:
            return math.inf
        mean = statistics.fmean(self._losses)
        return mean + self._train.spike_sigma * statistics.pstdev(self._losses, mean)


def poisoned(loss: Tensor) -> Tensor:
    """Return a loss whose gradient is all NaN: DeepSpeed then drops the whole step, including what earlier
    micro-batches left in its buffers, at every stage and precision."""
    return loss * torch.nan
