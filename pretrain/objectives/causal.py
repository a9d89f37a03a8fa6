"""Train a left-to-right language model: every token predicts the next one of its example (Radford et al. 2018, GPT).

`objective.causal.direction=right_to_left` trains its counterpart (Peters et al. 2018, ELMo, section 3.1): the tokens of
each example are reversed, so that positions count from its end, and the rest is the same. Logits, and so the exported
model, are those of the ids as they are given: whoever uses it reverses them.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from data_pipeline.shards.index import VocabularyStamp
from pretrain.config.settings import RunConfig
from pretrain.model.attention_tiles import CAUSAL
from pretrain.model.batch import MicroBatch
from pretrain.model.encoder import Encoder
from pretrain.model.heads import NextTokenHead
from pretrain.objectives.base import Model, Objective, Term, Terms, accuracy

if TYPE_CHECKING:  # packing imports numba, which `maskmill plan` need not wait for
    from data_pipeline.loader.packing import StepShare


class NextTokens(Model):
    """BERT's layers, in which a token sees itself and what is before it, and predicts the token after it. With
    `reverse` it is trained on reversed examples."""

    def __init__(self, encoder: Encoder, reverse: bool = False) -> None:
        super().__init__(encoder)
        self.reverse = reverse
        self.mlm_head = NextTokenHead(
            encoder
        )  # BERT's head of words, and its name: weights are drawn by name

    def forward(self, batch: MicroBatch, memory: Any = None) -> tuple[Terms, Any]:
        """Compute the term `causal`: cross-entropy of every token that has one before it in its example."""
        batch = reversed_examples(batch) if self.reverse else batch
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
    families = ("BertLMHeadModel", "ModernBertDecoderForCausalLM")
    metrics = ("causal_accuracy",)
    headline = "causal_loss"
    words = ("causal",)
    visibility = CAUSAL

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self._reverse = config.objective.causal.direction == "right_to_left"

    def build_model(self, vocabulary: VocabularyStamp) -> Model:
        """Build the encoder with its head."""
        return NextTokens(self.build_encoder(vocabulary), self._reverse)

    def targets(self, batch: MicroBatch, vocabulary: VocabularyStamp) -> dict[str, Tensor]:
        """Find the token that each predicts."""
        return {"causal": (reversed_examples(batch) if self._reverse else batch).next_tokens()}

    def counts(self, share: "StepShare") -> dict[str, int]:
        """Count all tokens but the first of each example."""
        return {"causal": share.tokens - share.examples}

    def predicted_rows(self, tokens: int, masked: int) -> int:
        """Count every token."""
        return tokens


def reversed_examples(batch: MicroBatch) -> MicroBatch:
    """Reverse the order of the tokens within each example; positions count on from 0. Nothing may be masked. No value
    is read from the device."""
    examples_T = batch.example_index
    ends_T, starts_T = (
        batch.cu_seqlens[part].long().index_select(0, examples_T) for part in (slice(1, None), slice(-1))
    )
    rows_T = starts_T + ends_T - 1 - torch.arange(batch.tokens, device=examples_T.device)
    result = replace(
        batch,
        input_ids=batch.input_ids.index_select(0, rows_T),
        segment_ids=batch.segment_ids.index_select(0, rows_T),
    )
    object.__setattr__(result, "packing", batch.packing)  # with the tile plan that it keeps
    return result
