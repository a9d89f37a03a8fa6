"""Train XLNet: tokens in a random order, each from those before it in that order (Yang et al. 2019; zihangdai/xlnet).

The targets are the masked tokens of the data, whose words are put back: no token is ever replaced. [CLS], [SEP] and the
targets have a place in the order of their example; all other tokens come before them and see only one another (section
2.3, partial prediction, and `_local_perm` of the published code).

Differences from the published code, each on purpose:
- The order is drawn for each example and epoch, and covers the whole example. There one permutation serves all examples
  of a batch, and the two halves of an example have one each, since only the first half is remembered.
- Examples follow one another without an overlap, and all of one is remembered. There each shares its first half with
  the one before it.
- Spans come from the masks of the data (data.masking=ngram: whole words, anywhere in the example). There they are of
  pieces, and a span of n has 6 n tokens to itself.
- With data.both_directions half of the streams read their documents from the end, with negated distances: what they
  remember comes after an example. There the tokens of a stream are reversed before segments are cut, so that [SEP]
  comes in front of a segment; here it stays behind it.
- Documents in one example are parted by [SEP] (data.sequences=full_sentences), or never share one. There <eod> stands
  between them, which is in the vocabulary here and not used.
- Every weight starts from the same truncated normal, and a target that sees no token gets 0 from attention, where the
  published mask lets it see all of them.

Shape legend: T packed tokens, R target rows, E examples, M length of the memory, H hidden size.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from data_pipeline.shards.index import VocabularyStamp
from pretrain.config.settings import RunConfig
from pretrain.model.batch import IGNORED, MicroBatch
from pretrain.model.encoder import encoder_flops
from pretrain.model.heads import Predictions
from pretrain.model.initialize import padded
from pretrain.model.vocabulary_losses import row_keys, vocabulary_cross_entropy
from pretrain.model.xlnet import TwoStreamEncoder
from pretrain.objectives.base import Model, Objective, Term, Terms, accuracy

if TYPE_CHECKING:  # packing imports numba, which `maskmill plan` need not wait for
    from data_pipeline.loader.packing import StepShare

EPOCH_BIT = 40
"""Of MicroBatch.keys: the epoch is above it."""


def factorization_ranks(batch: MicroBatch, cls: int, sep: int, seed: int) -> Tensor:
    """Draw the order of each example: (T,) int64, the least of all for tokens that are no targets, and different ones
    for targets, [CLS] and [SEP] (`cls`, `sep`). All orders are equally likely; one depends on the seed and on the
    example's key, so it is the same at any world size. No value is read from the device."""
    least = torch.iinfo(torch.int64).min
    rows_R = batch.masked_index.masked_fill(batch.masked_ids == IGNORED, batch.tokens)
    ordered_T = torch.zeros(batch.tokens + 1, dtype=torch.bool, device=rows_R.device)
    ordered_T = ordered_T.index_fill(0, rows_R, True)[:-1]
    ordered_T = ordered_T | (batch.input_ids == cls) | (batch.input_ids == sep)
    hashes_T = row_keys(seed, batch.keys.index_select(0, batch.example_index), batch.positions)
    return hashes_T.clamp(min=least + 1).masked_fill(~ordered_T, least)


class TargetHead(nn.Module):
    """The word embeddings as the output matrix, plus one bias per word; no layer before them."""

    def __init__(self, encoder: TwoStreamEncoder) -> None:
        super().__init__()
        self.vocabulary_size = encoder.vocabulary_size
        self.decoder = encoder.embeddings.word.weight
        self.bias = nn.Parameter(torch.zeros(padded(self.vocabulary_size)))
        self.vocabulary_rows = {"bias": self.vocabulary_size}

    def forward(self, hidden_RH: Tensor, ids_R: Tensor) -> tuple[Predictions, Tensor]:
        """Compute loss, count and hits of the words `ids_R`, where -1 counts nowhere, and the likeliest word of each
        row as in `MaskedPredictions`."""
        found = vocabulary_cross_entropy(hidden_RH, self.decoder, self.bias, ids_R, self.vocabulary_size)
        counted_R = ids_R != IGNORED
        whole = Predictions(found.loss, counted_R.sum(), found.hits_R.sum())
        return whole, found.answers_R.masked_fill(~counted_R, IGNORED)

    def logits(self, hidden_RH: Tensor) -> Tensor:
        """Compute the (R, V) logits, without padding."""
        rows = self.vocabulary_size
        return nn.functional.linear(hidden_RH, self.decoder[:rows], self.bias[:rows])


class PermutedTokens(Model):
    """Two streams, of which the query stream predicts words."""

    encoder: TwoStreamEncoder

    def __init__(self, encoder: TwoStreamEncoder, vocabulary: VocabularyStamp, config: RunConfig) -> None:
        super().__init__(encoder)
        self.plm_head = TargetHead(encoder)
        self.frame, self.seed = (vocabulary.cls, vocabulary.sep), config.run.seed
        self.memory_length = config.objective.xlnet.memory_length
        self.both_directions = config.data.both_directions

    def forward(self, batch: MicroBatch, memory: Any = None) -> tuple[Terms, Any]:
        """Compute the term `plm`: cross-entropy of the targets, each from what comes before it in its example's order,
        and the memory for the next step."""
        text = batch.filled(batch.masked_ids)
        ranks_T = factorization_ranks(text, *self.frame, self.seed)
        backwards_E = batch.streams % 2 == 1 if self.both_directions else None
        streams = self.encoder(text, ranks_T, self._past(batch, memory), backwards_E=backwards_E)
        plm, answers_R = self.plm_head(streams.query_RH, batch.masked_ids)
        terms = {"plm": Term(plm.loss, plm.count, 1.0)}
        kept = None
        if streams.memory is not None:
            kept = {"hidden": streams.memory.float(), "epoch": (batch.keys >> EPOCH_BIT).float()}
        return Terms(terms, {"plm_accuracy": accuracy(plm)}, answers_R), kept

    def _past(self, batch: MicroBatch, memory: dict[str, Tensor] | None) -> Tensor | None:
        """Return the memory (E, layers, M, H), zeros where a stream has begun its part of the text again."""
        if not self.memory_length:
            return None
        settings = self.encoder.settings
        if memory is None:
            shape = (len(batch.lengths), settings.layers, self.memory_length, settings.hidden)
            return torch.zeros(shape, device=batch.input_ids.device)
        again_E = memory["epoch"] != (batch.keys >> EPOCH_BIT)
        return memory["hidden"].masked_fill(again_E[:, None, None, None], 0.0)

    def logits(self, batch: MicroBatch) -> dict[str, Tensor]:
        """Compute {"content": (tokens, words), "plm": (masked rows, words)} of the batch's own ids, where every token
        sees all of its example, and the query stream all but its own token; no memory."""
        streams = self.encoder(batch, with_content=True)
        return {
            "content": self.plm_head.logits(streams.content_TH),
            "plm": self.plm_head.logits(streams.query_RH),
        }


class XlNet(Objective):
    """The objective `xlnet`."""

    terms = ("plm",)
    metrics = ("plm_accuracy",)
    headline = "plm_loss"
    families = ("XLNetLMHeadModel",)
    words = ("plm",)
    one_shape = False

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        encoder, self.memory_length = config.encoder, config.objective.xlnet.memory_length
        if self.memory_length:
            self.memory = {"hidden": (encoder.layers, self.memory_length, encoder.hidden), "epoch": ()}

    def build_model(self, vocabulary: VocabularyStamp) -> Model:
        """Build the two-stream encoder with its head."""
        recompute = self.config.train.activation_checkpointing
        encoder = TwoStreamEncoder(self.config.encoder, vocabulary.size, recompute)
        return PermutedTokens(encoder, vocabulary, self.config)

    def targets(self, batch: MicroBatch, vocabulary: VocabularyStamp) -> dict[str, Tensor]:
        """Find the words of the targets."""
        return {"plm": batch.masked_ids}

    def counts(self, share: "StepShare") -> dict[str, int]:
        """Count targets."""
        return {"plm": share.masked}

    def flops(self, vocabulary: int, *, tokens: int, squares: int, masked: int) -> float:
        """Count the operations of the content stream over all tokens but in the last layer, of the query stream over
        `masked` targets, of keys and values of the memory, and of the projection to words. Each pair of query and key
        has a third product, with the vector of its distance; pairs that an order hides are counted, as they are
        computed."""
        encoder, hidden = self.config.encoder, self.config.encoder.hidden
        before = (encoder.layers - 1) / encoder.layers
        remembered = tokens * self.memory_length
        content = encoder_flops(encoder, tokens, squares + remembered) * before
        asked = (squares + remembered) * masked / max(tokens, 1)
        query = encoder.layers * (
            6 * (2 * hidden + 2 * encoder.intermediate) * hidden * masked + 12 * hidden * asked
        )
        keyed = 6 * 2 * hidden * hidden * tokens
        distances = 6 * hidden * ((encoder.layers - 1) * (squares + remembered) + encoder.layers * asked)
        return content + query + keyed + distances + 6.0 * hidden * vocabulary * masked
