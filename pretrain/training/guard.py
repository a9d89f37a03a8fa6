"""Decide whether to accept a global batch, skip it, roll back or end the run, and average its loss terms for the log.

The guard makes two checks: of a gradient that is not finite (train.on_nan), which the engine has not applied; and of a
loss spike (train.on_spike), as in OLMo's SkipStepOptimizer: more than `spike_sigma` standard deviations above the mean
of the last `spike_window` accepted losses. All ranks see the same numbers, so all decide the same.

The meter averages over the global batches between two log lines. Its values stay on the device as (sum, count) until a
log step, which sums them over ranks in one all-reduce. The figures are those of the whole global batch for any
sharding, and no other step waits for the device because of them.
"""

import math
import statistics
from collections import Counter

import torch
from torch import Tensor

from data_pipeline.errors import UserError
from pretrain.config.settings import RunConfig
from pretrain.distributed.world import World
from pretrain.objectives.base import Terms
from pretrain.run.metrics import metric
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


# The meter of loss terms and metrics.

LARGEST_EXPONENT = 700.0
"""Largest exponent whose exp is finite in float64."""


class LossMeter:
    """Adds up terms and metrics; `read` empties it."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[Tensor, Tensor]] = {}
        self._step: dict[str, tuple[Tensor, Tensor]] = {}  # of the step under way
        self._weights: dict[str, float] = {}

    def add(self, terms: Terms) -> None:
        """Add one micro-batch to the current step."""
        for name, term in terms.items():
            self._weights[name] = term.weight
            self._add(f"{name}_loss", term.sum.detach(), term.count)
        for name, figure in terms.metrics.items():
            self._add(name, *figure)

    def end_step(self, applied: bool = True) -> None:
        """Count the step's micro-batches, or drop them if its update was not applied."""
        for name, (total, count) in self._step.items() if applied else ():
            old = self._sums.get(name)
            self._sums[name] = (total, count) if old is None else (old[0] + total, old[1] + count)
        self._step = {}

    def read(self, world: World) -> dict[str, float]:
        """Return the means over all ranks since the last call, by name, and `loss`, the weighted sum of the terms;
        for a Ranking, the area under its curve. Collective. Means over nothing are left out."""
        names = sorted(self._sums)
        own = [value.double().cpu().flatten() for name in names for value in self._sums[name]]
        sums, _ = world.sum_max([x for values in own for x in values.tolist()], []).wait()
        parts = torch.tensor(sums, dtype=torch.float64).split([len(values) for values in own])
        means = {
            name: figure
            for name, *pair in zip(names, parts[::2], parts[1::2], strict=True)
            if (figure := _mean(*pair) if len(pair[0]) == 1 else area_under_curve(*pair)) is not None
        }
        losses = [
            weight * means[f"{name}_loss"]
            for name, weight in self._weights.items()
            if f"{name}_loss" in means
        ]
        self._sums = {}
        for name, loss in list(means.items()):
            known = metric(name)
            if known.measure == "loss" and known.prediction and known.prediction.words:
                means[f"{known.prediction.name}_perplexity"] = _perplexity(loss)
        return {"loss": sum(losses), **means} if losses else means

    def forget(self) -> None:
        """Drop everything counted since the last `read`, after a rollback."""
        self._sums, self._step = {}, {}

    def _add(self, name: str, total: Tensor, count: Tensor) -> None:
        old = self._step.get(name)
        now = total.detach()
        self._step[name] = (now, count) if old is None else (old[0] + now, old[1] + count)


def _mean(total: Tensor, count: Tensor) -> float | None:
    return float(total / count) if count > 0 else None


def area_under_curve(positives_B: Tensor, negatives_B: Tensor) -> float | None:
    """Compute the share of pairs of a positive and a negative that are ranked right, ties (one bin) counted half: the
    area under the ROC curve. None without a pair."""
    below_B = negatives_B.cumsum(0) - negatives_B
    pairs = positives_B.sum() * negatives_B.sum()
    return float((positives_B * (below_B + negatives_B / 2)).sum() / pairs) if pairs else None


def _perplexity(loss: float) -> float:
    """Compute exp(loss), infinite if it overflows float64."""
    return math.inf if loss > LARGEST_EXPONENT else math.exp(loss)
