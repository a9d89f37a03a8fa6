"""Train SpanBERT: masked spans, from their own hidden states and again from their boundaries (Joshi et al. 2020).

The paper's loss (section 3.2) sums both cross-entropies over the masked tokens; here both are divided by the masked
tokens of the global batch. The published code divides the second one by the tokens it predicts, plus one. As in it,
spans at [CLS] or [SEP] are not predicted from their boundaries, nor is a token beyond the 15th of its span: they add 0.
Where its masks differ from those drawn here: data_pipeline/masking/masker.py.
"""

from typing import TYPE_CHECKING, Any

import torch

from data_pipeline.shards.index import VocabularyStamp
from pretrain.model.batch import MicroBatch
from pretrain.model.encoder import Encoder
from pretrain.model.projection.span_boundary import SpanBoundaryHead, span_rows
from pretrain.objectives.base import Model
from pretrain.objectives.losses import MASKED_METRICS, Term, Terms, accuracy, masked_metrics
from pretrain.objectives.mlm import MaskedTokens, Mlm

if TYPE_CHECKING:  # packing imports numba, which `maskmill plan` need not wait for
    from data_pipeline.loader.packing import StepShare

PLACES = 15
"""Tokens of a span that are predicted from its boundaries (max_pair_targets of the published command)."""
PLACE_SIZE = 200
"""Width of the vector of a token's place in its span (section 3.2)."""


class MaskedSpans(MaskedTokens):
    """An encoder that predicts masked tokens, and those of spans from the spans' boundaries too."""

    def __init__(self, encoder: Encoder, vocabulary: VocabularyStamp) -> None:
        super().__init__(encoder, vocabulary.mask)
        self.frame = (vocabulary.cls, vocabulary.sep)
        self.sbo_head = SpanBoundaryHead(encoder, PLACES, PLACE_SIZE)

    def forward(self, batch: MicroBatch, memory: Any = None) -> tuple[Terms, Any]:
        """Compute the terms `mlm` and `sbo`: cross-entropies of the masked tokens."""
        rows, predicted = batch.predicted(pairs=False)
        spans = span_rows(batch, *self.frame, PLACES)
        hidden_PH = self.encoder(batch, torch.cat((rows, spans.left_R, spans.right_R)))
        _, left_RH, right_RH = hidden_PH.chunk(3)
        mlm = self.mlm_head(hidden_PH, predicted)
        sbo = self.sbo_head(left_RH, right_RH, spans.place_R, spans.ids_R)
        terms = {"mlm": Term(mlm.all.loss, mlm.all.count, 1.0), "sbo": Term(sbo.loss, mlm.all.count, 1.0)}
        metrics = {**dict(masked_metrics(mlm)), "sbo_accuracy": accuracy(sbo)}
        return Terms(terms, metrics, mlm.answers_R), memory


class SpanBert(Mlm):
    """The objective `spanbert`."""

    terms = ("mlm", "sbo")
    metrics = (*MASKED_METRICS, "sbo_accuracy")

    def build_model(self, vocabulary: VocabularyStamp) -> Model:
        """Build the encoder with its two heads."""
        return MaskedSpans(self.build_encoder(vocabulary), vocabulary)

    def counts(self, share: "StepShare") -> dict[str, int]:
        """Count masked tokens, for both terms."""
        return {"mlm": share.masked, "sbo": share.masked}

    def predicted_rows(self, tokens: int, masked: int) -> int:
        """Count the rows of the vocabulary projection: both heads have one for each masked token."""
        return 2 * masked
