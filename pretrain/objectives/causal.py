"""Train a left-to-right language model: every token predicts the next one of its example (Radford et al. 2018, GPT)."""

from typing import TYPE_CHECKING, Any

from torch import Tensor

from data_pipeline.shards.schema import VocabularyStamp
from pretrain.model.batch import MicroBatch
from pretrain.model.encoder import Encoder
from pretrain.model.heads import NextTokenHead
from pretrain.model.visibility import CAUSAL
from pretrain.objectives.base import Model, Objective
from pretrain.objectives.losses import Term, Terms, accuracy

if TYPE_CHECKING:  # packing imports numba, which `maskmill plan` need not wait for
    from data_pipeline.loader.packing import StepShare


class NextTokens(Model):
    """BERT's layers, in which a token sees itself and what is before it, and predicts the token after it."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__(encoder)
        self.mlm_head = NextTokenHead(
            encoder
        )  # BERT's head of words, and its name: weights are drawn by name

    def forward(self, batch: MicroBatch, memory: Any = None) -> tuple[Terms, Any]:
        """Compute the term `causal`: cross-entropy of every token that has one before it in its example."""
        hidden_TH = self.encoder(batch, visibility=CAUSAL)
        predictions = self.mlm_head(hidden_TH, batch.next_tokens())
        term = Term(predictions.loss, predictions.count, 1.0)
        return Terms({"causal": term}, {"causal_accuracy": accuracy(predictions)}), memory

    def logits(self, batch: MicroBatch) -> dict[str, Tensor]:
        """Compute {"causal": (tokens, words)}: of what comes after each token."""
        return {"causal": self.mlm_head.logits(self.encoder(batch, visibility=CAUSAL))}


class Causal(Objective):
    """The objective `causal`."""

    terms = ("causal",)
    families = ("BertLMHeadModel",)
    metrics = ("causal_accuracy",)
    headline = "causal_loss"
    words = ("causal",)
    visibility = CAUSAL

    def build_model(self, vocabulary: VocabularyStamp) -> Model:
        """Build the encoder with its head."""
        return NextTokens(self.build_encoder(vocabulary))

    def targets(self, batch: MicroBatch, vocabulary: VocabularyStamp) -> dict[str, Tensor]:
        """Find the token after each."""
        return {"causal": batch.next_tokens()}

    def counts(self, share: "StepShare") -> dict[str, int]:
        """Count all tokens but the first of each example."""
        return {"causal": share.tokens - share.examples}

    def predicted_rows(self, tokens: int, masked: int) -> int:
        """Count every token."""
        return tokens
