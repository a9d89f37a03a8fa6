"""Average the terms of micro-batches over the global batches between two log lines.

Values stay on the device as (sum, count) until a log step, which sums them over ranks in one all-reduce. The
figures are those of the whole global batch for any sharding, and no other step waits for the device.
"""

import math

import torch
from torch import Tensor

from pretrain.distributed.world import World
from pretrain.objectives.base import Terms
from pretrain.run.metrics import metric

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
            found = metric(name)
            if found and found.what == "loss" and found.kind.words:
                means[f"{found.kind.name}_perplexity"] = _perplexity(loss)
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
