"""Represent a loss as sums and counts, not means, so that any split of the global batch gives the same loss."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from pretrain.model.heads import KINDS, MaskedPredictions, Predictions

MASKED_METRICS = ("mlm_accuracy", *(f"{kind}_{what}" for kind in KINDS for what in ("loss", "accuracy")))
"""Names of `masked_metrics`, in their order."""


class Term(NamedTuple):
    """One part of the loss: weight * sum / (count over the whole global batch)."""

    sum: Tensor  # 0-d, with a gradient
    count: Tensor  # type: ignore[assignment]  # 0-d int64, on the device
    weight: float


class Ratio(NamedTuple):
    """A figure to report, sum / count once both are added up over ranks and micro-batches: 0-d, no gradient."""

    sum: Tensor
    count: Tensor  # type: ignore[assignment]


class Ranking(NamedTuple):
    """A figure to report, the area under the ROC curve of scores whose histograms are added up over ranks and
    micro-batches: counts (B,) int64 of each bin of scores, ascending."""

    positives: Tensor
    negatives: Tensor


class Terms(dict[str, Term]):
    """The terms of the loss by name, and metrics that are only reported."""

    def __init__(
        self,
        terms: dict[str, Term],
        metrics: Mapping[str, Ratio | Ranking],
        answers_R: Tensor | None = None,
    ) -> None:
        super().__init__(terms)
        self.metrics = metrics
        """Figures by name."""
        self.answers_R = answers_R
        """int64: the likeliest word at each [MASK], as `MaskedPredictions` has it; None without such a head."""


def loss_ratio(predictions: Predictions) -> Ratio:
    """Return the mean loss of these predictions, to report."""
    return Ratio(predictions.loss.detach(), predictions.count)


def accuracy(predictions: Predictions) -> Ratio:
    """Return the share of correct predictions."""
    return Ratio(predictions.hits, predictions.count)


def pair_metric_names(task: str, labels: Sequence[str]) -> tuple[str, ...]:
    """List the names of `pair_metrics`, in order."""
    return (
        f"{task}_accuracy",
        *(f"{task}_{what}_{label}" for what in ("loss", "accuracy") for label in labels),
    )


def pair_term(found: Mapping[str, Predictions]) -> Term:
    """Sum a PairHead's results over labels to a term of weight 1."""
    losses, counts = ([getattr(one, name) for one in found.values()] for name in ("loss", "count"))
    return Term(sum(losses[1:], losses[0]), sum(counts[1:], counts[0]), 1.0)


def pair_metrics(task: str, found: Mapping[str, Predictions]) -> Iterable[tuple[str, Ratio]]:
    """Name the accuracy over all pairs, and loss and accuracy at each label, as (name, figure)."""
    of_labels = list(found.values())
    hits = sum((one.hits for one in of_labels[1:]), of_labels[0].hits)
    yield f"{task}_accuracy", Ratio(hits, pair_term(found).count)
    for label, predictions in found.items():
        yield f"{task}_loss_{label}", loss_ratio(predictions)
    for label, predictions in found.items():
        yield f"{task}_accuracy_{label}", accuracy(predictions)


def masked_metrics(predictions: MaskedPredictions) -> Iterable[tuple[str, Ratio]]:
    """Name the accuracy over all predicted tokens, and loss and accuracy per kind, as (name, figure)."""
    yield "mlm_accuracy", accuracy(predictions.all)
    for kind, of_kind in predictions.kinds.items():
        yield f"{kind}_loss", loss_ratio(of_kind)
        yield f"{kind}_accuracy", accuracy(of_kind)
