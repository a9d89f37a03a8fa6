"""Train BERT: masked tokens and next sentence, each weighing 1 (Devlin et al. 2019, section 3.1 and appendix A.2)."""

from typing import TYPE_CHECKING, Any

from torch import Tensor

from data_pipeline.shards.schema import VocabularyStamp
from pretrain.model.batch import MicroBatch
from pretrain.model.encoder import Encoder
from pretrain.model.heads import MaskedTokenHead, NextSentenceHead
from pretrain.objectives.base import Model, Objective
from pretrain.objectives.losses import (
    MASKED_METRICS,
    Ratio,
    Term,
    Terms,
    accuracy,
    loss_ratio,
    masked_metrics,
)

if TYPE_CHECKING:  # packing imports numba, which `maskmill plan` need not wait for
    from data_pipeline.loader.packing import StepShare


class MaskedTokensAndNextSentence(Model):
    """An encoder that predicts masked tokens, and whether segment B follows segment A."""

    def __init__(self, encoder: Encoder, mask_id: int) -> None:
        super().__init__(encoder)
        self.mlm_head = MaskedTokenHead(encoder, mask_id)
        self.nsp_head = NextSentenceHead(encoder)

    def forward(self, batch: MicroBatch, memory: Any = None) -> tuple[Terms, Any]:
        """The terms `mlm` and `nsp`: cross-entropies of masked tokens and of pair labels."""
        rows, predicted = batch.predicted()
        hidden_PH = self.encoder(batch, rows)
        mlm = self.mlm_head(hidden_PH, predicted)
        is_next, not_next = self.nsp_head(hidden_PH, predicted)
        pairs = is_next.count + not_next.count
        terms = {
            "mlm": Term(mlm.all.loss, mlm.all.count, 1.0),
            "nsp": Term(is_next.loss + not_next.loss, pairs, 1.0),
        }
        metrics = {
            **dict(masked_metrics(mlm)),
            "nsp_accuracy": Ratio(is_next.hits + not_next.hits, pairs),
            "nsp_loss_is_next": loss_ratio(is_next),
            "nsp_loss_not_next": loss_ratio(not_next),
            "nsp_accuracy_is_next": accuracy(is_next),
            "nsp_accuracy_not_next": accuracy(not_next),
        }
        return Terms(terms, metrics, mlm.answers_R), memory

    def logits(self, batch: MicroBatch) -> dict[str, Tensor]:
        """{"mlm": (masked rows, words), "nsp": (examples, 2)}; of the two, index 1 is a random next."""
        hidden_TH = self.encoder(batch)
        return {
            "mlm": self.mlm_head.logits(hidden_TH, batch),
            "nsp": self.nsp_head.logits(hidden_TH, batch),
        }


class Bert(Objective):
    """The objective `bert`."""

    pairs = True
    terms = ("mlm", "nsp")
    families = ("BertForPreTraining",)
    metrics = (
        *MASKED_METRICS,
        "nsp_accuracy",
        "nsp_loss_is_next",
        "nsp_loss_not_next",
        "nsp_accuracy_is_next",
        "nsp_accuracy_not_next",
    )
    headline = "mask_loss"

    def build_model(self, vocabulary: VocabularyStamp) -> Model:
        """Build the encoder with both heads."""
        return MaskedTokensAndNextSentence(self.build_encoder(vocabulary), vocabulary.mask)

    def counts(self, share: "StepShare") -> dict[str, int]:
        """Count masked tokens and pairs."""
        return {"mlm": share.masked, "nsp": share.pairs}
