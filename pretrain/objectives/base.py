"""Define what an objective is: made from a run's settings, it builds the model and counts what the model predicts.

A loss is represented as sums and counts, not means, so that any split of the global batch gives the same loss.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from torch import Tensor, nn

from data_pipeline.shards.index import VocabularyStamp
from pretrain.config.settings import RunConfig
from pretrain.model.attention_tiles import FULL, Visibility
from pretrain.model.batch import MicroBatch
from pretrain.model.encoder import Encoder, encoder_flops, projection_flops
from pretrain.model.heads import KINDS, MaskedPredictions, Predictions
from pretrain.model.initialize import initialize

if TYPE_CHECKING:
    from data_pipeline.loader.packing import StepShare


# The parts of a loss, and figures to report.


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


# Models and objectives.

MODERN_FAMILIES = ("ModernBertForMaskedLM", "EuroBertForMaskedLM")
"""What models of masked words are exported as where their encoder is one of these."""


class Model(nn.Module):
    """An encoder with heads. `self.encoder` is the Encoder, or another one; heads are further submodules."""

    frozen: tuple[nn.Module, ...] = ()
    """Models that the forward pass uses and training does not change, in evaluation mode. They are not submodules,
    so optimizer, ZeRO and checkpoints skip them, and every rank holds them whole. They follow the model to its
    device and dtype."""

    encoder: Any

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Convert every tensor, as `to`, `half` and similar methods do."""
        for model in self.frozen:
            model._apply(fn, recurse)
        return super()._apply(fn, recurse)

    def forward(self, batch: MicroBatch, memory: Any = None) -> tuple[Terms, Any]:
        """Compute the parts of the loss, and the memory for the next step of each stream (None without one)."""
        raise NotImplementedError

    def logits(self, batch: MicroBatch) -> dict[str, Tensor]:
        """Compute the logits of each head by name: "mlm" (masked rows, words), "nsp" (examples, 2)."""
        raise NotImplementedError


class Objective:
    """What a run learns: one object, made from its settings.

    A member of the registry sets the attributes below, on its class or, where they follow from the settings, in
    `__init__`, and defines `build_model` and `counts`."""

    terms: tuple[str, ...]
    """Names of the parts of the loss, as in Terms."""
    metrics: tuple[str, ...]
    """Names of the figures in Terms.metrics, in the order to show them."""
    headline: str
    """The main metric, shown first in status and report."""
    families: tuple[str, ...]
    """Names in pretrain/huggingface/registry.py of what a model may be exported as. Those of one folder are
    alternatives, of which the first that has a place for the encoder is taken; families of several folders go to a
    folder each."""
    pairs: bool = False
    """Whether examples have two segments and a label."""
    memory: Mapping[str, tuple[int, ...]] = {}
    """What the model remembers of each stream from step to step: name -> shape of one stream's, float32. Empty:
    nothing. The model then takes and returns {name: (examples, ...)} (pretrain/training/stream_memory.py)."""
    words: tuple[str, ...] = ()
    """Kinds of predictions of words whose figures are compared with what word frequencies alone give: each has a
    figure `KIND_loss` and a baseline `KIND_unigram_loss`."""
    labels: Mapping[str, tuple[str, ...]] = {}
    """Pair task -> names of its labels: each has `TASK_accuracy` and a baseline `TASK_majority`."""
    visibility: ClassVar[Visibility] = FULL
    """Which tokens of its example a token attends to."""
    one_shape: ClassVar[bool] = True
    """Whether the model computes the same operations for all micro-batches of one shape, as torch.compile needs."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.name = config.objective.name

    def build_model(self, vocabulary: VocabularyStamp) -> Model:
        """Build the run's model, its weights not yet set, on the default device. Training, export and the forecast of
        memory build it here, and nowhere else. Raises UserError where a setting is out of range."""
        raise NotImplementedError

    def training_model(self, vocabulary: VocabularyStamp) -> Model:
        """Build what training runs: the run's model, with the frozen ones that its loss reads, none of their weights
        set."""
        return self.build_model(vocabulary)

    def fresh_model(self, vocabulary: VocabularyStamp) -> Model:
        """Build the run's model with fresh weights, on the CPU in float32: equal for equal settings, on every rank, and
        without a draw from torch's global generator."""
        model = self.training_model(vocabulary)
        initialize(model, self.config.run.seed, self.config.encoder.initializer_range)
        return model

    def build_encoder(self, vocabulary: VocabularyStamp) -> Encoder:
        """Build the encoder that the settings describe, its weights not yet set."""
        return Encoder(self.config.encoder, vocabulary.size, self.config.train.activation_checkpointing)

    def counts(self, share: "StepShare") -> dict[str, int]:
        """Count, for each of `terms`, the predictions of this rank's share of a global batch: known on the host before
        the step, and summed over the ranks what the term is divided by."""
        raise NotImplementedError

    def targets(self, batch: MicroBatch, vocabulary: VocabularyStamp) -> dict[str, Tensor]:
        """Return the int64 targets for each of `words` and `labels`; negative where nothing is predicted."""
        return {}

    def predicted_rows(self, tokens: int, masked: int) -> int:
        """Count the rows of the vocabulary projection for `tokens` tokens of which `masked` are masked."""
        return masked

    def flops(self, vocabulary: int, *, tokens: int, squares: int, masked: int) -> float:
        """Count the operations of forward and backward over examples with `tokens` tokens in all, whose squared lengths
        sum to `squares`, and `masked` masked ones."""
        encoder, rows = self.config.encoder, self.predicted_rows(tokens, masked)
        return encoder_flops(encoder, tokens, squares, self.visibility) + projection_flops(
            encoder, vocabulary, rows
        )
