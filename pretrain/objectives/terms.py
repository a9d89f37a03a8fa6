"""What an objective hands to the training loop: sums and counts, never means, so that any cut of the global
batch gives the same loss."""

from typing import NamedTuple

from torch import Tensor

from pretrain.encoder.heads import Predictions


class Term(NamedTuple):
    """One part of the loss: weight * sum / (count over the whole global batch)."""

    sum: Tensor  # 0-d, with a gradient
    count: Tensor  # type: ignore[assignment]  # 0-d int64, on the device
    weight: float


class Ratio(NamedTuple):
    """A figure to report, sum / count once both are added up over ranks and micro-batches: 0-d, no gradient."""

    sum: Tensor
    count: Tensor  # type: ignore[assignment]


class Terms(dict[str, Term]):
    """The parts of the loss by name, and beside them `metrics`, figures by name that only get reported."""

    def __init__(self, terms: dict[str, Term], metrics: dict[str, Ratio]) -> None:
        super().__init__(terms)
        self.metrics = metrics


def loss_ratio(predictions: Predictions) -> Ratio:
    """The mean loss of these predictions, to report."""
    return Ratio(predictions.loss.detach(), predictions.count)


def accuracy(predictions: Predictions) -> Ratio:
    """The share of these predictions that is right."""
    return Ratio(predictions.hits, predictions.count)
