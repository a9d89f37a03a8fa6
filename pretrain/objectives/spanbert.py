"""Train SpanBERT: masked spans, from their own hidden states and again from their boundaries (Joshi et al. 2020).

The paper's loss (section 3.2) sums both cross-entropies over the masked tokens; here both are divided by the masked
tokens of the global batch. The published code divides the second one by the tokens it predicts, plus one. As in it,
spans at [CLS] or [SEP] are not predicted from their boundaries, nor is a token beyond the 15th of its span: they add 0.
Where its masks differ from those drawn here: data_pipeline/masking/masker.py.

The second cross-entropy is the span boundary objective: the words of masked spans are predicted from the spans' two
outer neighbours (facebookresearch/SpanBERT, pretraining/fairseq/models/pair_bert.py).

Shape legend: T packed tokens, R masked rows, H hidden size, S size of a place's vector, V words.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from data_pipeline.shards.index import VocabularyStamp
from pretrain.model.batch import IGNORED, MicroBatch
from pretrain.model.encoder import ACTIVATIONS, Encoder
from pretrain.model.heads import Predictions
from pretrain.model.initialize import bare, bare_embedding, padded
from pretrain.model.vocabulary_losses import vocabulary_cross_entropy
from pretrain.objectives.base import MASKED_METRICS, Model, Term, Terms, accuracy, masked_metrics
from pretrain.objectives.mlm import MaskedTokens, Mlm

if TYPE_CHECKING:
    from data_pipeline.loader.packing import StepShare


# The span boundary objective: the spans of a micro-batch, and the head that predicts their words.


class SpanRows(NamedTuple):
    """Where the words of masked spans are predicted from; every row as in the micro-batch's masked rows."""

    left_R: Tensor  # int64: the row of the run before the span
    right_R: Tensor  # int64: the row after it
    place_R: Tensor  # int64: the token's place in its span, from 0
    ids_R: Tensor  # int64: its original id; -1 where it is not predicted


def span_rows(batch: MicroBatch, cls: int, sep: int, places: int) -> SpanRows:
    """Find the spans of a micro-batch: maximal runs of masked tokens, so that spans that touch are one and no boundary
    is masked, as in the published code.

    A token is not predicted where its span touches [CLS] or [SEP] (`cls`, `sep`), which are no boundaries, where it is
    beyond the first `places` tokens of its span, and in spare rows. No value is read from the device."""
    index_R = batch.masked_index
    order_R = torch.arange(len(index_R), device=index_R.device)
    goes_on_R = (index_R == index_R.roll(1) + 1) & (order_R > 0)
    is_followed_R = (index_R.roll(-1) == index_R + 1) & (order_R < len(index_R) - 1)
    first_R = order_R.masked_fill(goes_on_R, 0).cummax(0).values
    last_R = order_R.masked_fill(is_followed_R, len(index_R)).flip(0).cummin(0).values.flip(0)
    start_R, end_R = index_R.index_select(0, first_R), index_R.index_select(0, last_R)
    left_R, right_R = (start_R - 1).clamp(min=0), (end_R + 1).clamp(max=batch.tokens - 1)
    place_R = index_R - start_R
    predicted_R = (
        (batch.masked_ids != IGNORED)
        & (place_R < places)
        & _is_text(batch.input_ids.index_select(0, left_R), cls, sep)
        & _is_text(batch.input_ids.index_select(0, right_R), cls, sep)
        & (
            batch.positions.index_select(0, index_R) > place_R
        )  # there is a token before the span in its example
        & (right_R > end_R)
        & (batch.positions.index_select(0, right_R) > 0)  # and one after it: the next example's begin at 0
    )
    ids_R = batch.masked_ids.masked_fill(~predicted_R, IGNORED)
    return SpanRows(left_R, right_R, place_R.clamp(0, places - 1), ids_R)


def _is_text(ids_R: Tensor, cls: int, sep: int) -> Tensor:
    return (ids_R != cls) & (ids_R != sep)


class SpanBoundaryHead(nn.Module):
    """Two layers of Linear, activation and LayerNorm over [left boundary; right boundary; vector of the place], then
    the word embeddings as the output matrix, plus a bias a word of its own.

    `decoder` is the embedding's own parameter, as in MaskedTokenHead."""

    def __init__(self, encoder: Encoder, places: int, place_size: int) -> None:
        super().__init__()
        settings, hidden = encoder.settings, encoder.settings.hidden
        self.vocabulary_size = encoder.vocabulary_size
        self.place = bare_embedding(places, place_size)
        self.first = bare(nn.Linear, 2 * hidden + place_size, hidden)
        self.first_norm = bare(nn.LayerNorm, hidden, eps=settings.layer_norm_eps)
        self.second = bare(nn.Linear, hidden, hidden)
        self.second_norm = bare(nn.LayerNorm, hidden, eps=settings.layer_norm_eps)
        self.activation = ACTIVATIONS[settings.activation]
        self.decoder = encoder.embeddings.word.weight
        self.bias = nn.Parameter(torch.zeros(padded(self.vocabulary_size)))
        self.vocabulary_rows = {"bias": self.vocabulary_size}

    def forward(self, left_RH: Tensor, right_RH: Tensor, place_R: Tensor, ids_R: Tensor) -> Predictions:
        """Compute loss, count and hits of the rows with an id in `ids_R`, from the hidden states of their spans'
        boundaries."""
        hidden_RH = self.transform(left_RH, right_RH, place_R)
        found = vocabulary_cross_entropy(hidden_RH, self.decoder, self.bias, ids_R, self.vocabulary_size)
        return Predictions(found.loss, (ids_R != IGNORED).sum(), found.hits_R.sum())

    def transform(self, left_RH: Tensor, right_RH: Tensor, place_R: Tensor) -> Tensor:
        """Compute what is multiplied with the word embeddings: (R, H)."""
        x_RH = torch.cat((left_RH, right_RH, self.place(place_R)), dim=-1)
        x_RH = self.first_norm(self.activation(self.first(x_RH)))
        return self.second_norm(self.activation(self.second(x_RH)))


# The objective, with its two heads.

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
