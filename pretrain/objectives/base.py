"""Define what an objective is: made from a run's settings, it builds the model and counts what the model predicts."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from torch import Tensor, nn

from data_pipeline.shards.index import VocabularyStamp
from pretrain.config.settings import FP8, RunConfig
from pretrain.model.attention_tiles import FULL, Visibility
from pretrain.model.batch import MicroBatch
from pretrain.model.encoder import Encoder, encoder_flops, projection_flops, use_fp8
from pretrain.model.initialize import initialize
from pretrain.objectives.losses import Terms

if TYPE_CHECKING:  # packing imports numba, which `maskmill plan` need not wait for
    from data_pipeline.loader.packing import StepShare


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
    """Names in export/families/registry.py of what a model may be exported as. Those of one folder are alternatives, of
    which the first that has a place for the encoder is taken; families of several folders go to a folder each."""
    pairs: bool = False
    """Whether examples have two segments and a label."""
    memory: Mapping[str, tuple[int, ...]] = {}
    """What the model remembers of each stream from step to step: name -> shape of one stream's, float32. Empty:
    nothing. The model then takes and returns {name: (examples, ...)} (training/stream_memory.py)."""
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
        if self.config.train.precision == FP8:
            use_fp8(model)
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
