"""Train a masked language model without a pair task, also as RoBERTa and XLM-R (Liu et al. 2019, RoBERTa).

The objectives are `mlm`, `roberta` and `xlmr`. All have the same loss.
"""

from typing import TYPE_CHECKING, Any

from torch import Tensor

from data_pipeline.shards.index import VocabularyStamp
from pretrain.model.batch import MicroBatch
from pretrain.model.encoder import Encoder
from pretrain.model.heads import MaskedTokenHead, masked_words
from pretrain.objectives.base import (
    MASKED_METRICS,
    MODERN_FAMILIES,
    Model,
    Objective,
    Term,
    Terms,
    masked_metrics,
)

if TYPE_CHECKING:
    from data_pipeline.loader.packing import StepShare


class MaskedTokens(Model):
    """An encoder that predicts the masked tokens of its input."""

    def __init__(self, encoder: Encoder, mask_id: int) -> None:
        super().__init__(encoder)
        self.mlm_head = MaskedTokenHead(encoder, mask_id)

    def forward(self, batch: MicroBatch, memory: Any = None) -> tuple[Terms, Any]:
        """Compute the term `mlm`: cross-entropy of the masked tokens."""
        rows, predicted = batch.predicted(pairs=False)
        mlm = self.mlm_head(self.encoder(batch, rows), predicted)
        term = Term(mlm.all.loss, mlm.all.count, 1.0)
        return Terms({"mlm": term}, dict(masked_metrics(mlm)), mlm.answers_R), memory

    def logits(self, batch: MicroBatch) -> dict[str, Tensor]:
        """Compute {"mlm": (masked rows, words)}."""
        return {"mlm": self.mlm_head.logits(self.encoder(batch), batch)}


class Mlm(Objective):
    """Train a masked language model without a pair task (Liu et al. 2019, RoBERTa).

    The objective `mlm`."""

    terms: tuple[str, ...] = ("mlm",)
    families: tuple[str, ...] = ("BertForMaskedLM", *MODERN_FAMILIES)
    metrics: tuple[str, ...] = MASKED_METRICS
    headline = "mask_loss"
    words = ("mask",)

    def build_model(self, vocabulary: VocabularyStamp) -> Model:
        """Build the encoder with its head."""
        return MaskedTokens(self.build_encoder(vocabulary), vocabulary.mask)

    def targets(self, batch: MicroBatch, vocabulary: VocabularyStamp) -> dict[str, Tensor]:
        """Find the words behind [MASK]."""
        return {"mask": masked_words(batch, vocabulary.mask)}

    def counts(self, share: "StepShare") -> dict[str, int]:
        """Count masked tokens."""
        return {"mlm": share.masked}


class Roberta(Mlm):
    """Train RoBERTa: masked tokens of running text, without pairs and without segments.

    The objective `roberta` (Liu et al. 2019, RoBERTa, sections 3 and 4). What makes a RoBERTa is fixed in the registry
    (a byte-level BPE vocabulary, XLM-R: unigram; no segment table; the exact GELU, which the head of transformers'
    class has) or stated in the recipes (full sentences, masks drawn at every epoch).

    Where the published code and this differ: fairseq masks <s> and </s> too, rounds 0.15 n at random, and draws random
    tokens from all entries but the first four. Here, as for every objective, special tokens stay, 0.15 n is rounded to
    the nearest, and a random token is any entry."""

    families = ("RobertaForMaskedLM", *MODERN_FAMILIES)


class XlmR(Mlm):
    """Train XLM-R: masked tokens of running text, without pairs and without segments.

    The objective `xlmr`: RoBERTa's, with the tokenizer and the class of XLM-R (Conneau et al. 2020, section 3)."""

    families = ("XLMRobertaForMaskedLM", *MODERN_FAMILIES)
