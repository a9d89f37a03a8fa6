"""Define what an objective is, and build its model with fresh weights."""

from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from torch import Tensor, nn

from pretrain.config.settings import RunConfig
from pretrain.model.batch import MicroBatch
from pretrain.model.encoder import Encoder
from pretrain.model.initialize import initialize
from pretrain.objectives.losses import Terms

if TYPE_CHECKING:  # packing imports numba, which `maskmill plan` need not wait for
    from data_pipeline.loader.packing import StepShare


class Model(nn.Module):
    """An encoder with heads. `self.encoder` is the Encoder; heads are further submodules. With `mask_id`, the id of
    [MASK], figures are told separately by what a predicted token's input is."""

    def __init__(self, encoder: Encoder, mask_id: int | None = None) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, batch: MicroBatch, carry: Any = None) -> tuple[Terms, Any]:
        """The parts of the loss, and the memory for the next step of each stream (None without one)."""
        raise NotImplementedError

    def logits(self, batch: MicroBatch) -> dict[str, Tensor]:
        """The logits of each head by name: "mlm" (masked rows, words), "nsp" (examples, 2)."""
        raise NotImplementedError


class Objective(Protocol):
    """One entry of the registry."""

    pairs: ClassVar[bool]  # whether examples have two segments and a label
    terms: ClassVar[tuple[str, ...]]  # names in Terms
    export_class: ClassVar[str]  # the class of transformers that loads an export
    metrics: ClassVar[tuple[str, ...]]  # names in Terms.metrics, in the order to show them
    headline: ClassVar[
        str
    ]  # the one of them that says best how good the model is; status and report lead with it

    @staticmethod
    def build_model(config: RunConfig, vocabulary_size: int, mask_id: int | None = None) -> Model:
        """The model of a run with these settings, its weights not yet set; `mask_id`: as for Model. Training, export
        and the forecast of memory build it here, and nowhere else."""

    @staticmethod
    def counts(share: "StepShare") -> dict[str, int]:
        """Of each of `terms`, how many predictions this rank's share of a global batch has: known on the host before
        the step, and summed over the ranks what the term is divided by."""


def build(
    objective: type[Objective], config: RunConfig, vocabulary_size: int, mask_id: int | None = None
) -> Model:
    """The objective's model with fresh weights, on the CPU in float32: equal for equal arguments, on every rank,
    and without a draw from torch's global generator. Raises UserError where a setting is out of range."""
    model = objective.build_model(config, vocabulary_size, mask_id)
    initialize(model, config.run.seed, config.encoder.initializer_range)
    return model


def build_encoder(config: RunConfig, vocabulary_size: int) -> Encoder:
    """The encoder of a run with these settings, its weights not yet set."""
    return Encoder(config.encoder, vocabulary_size, config.train.activation_checkpointing)
