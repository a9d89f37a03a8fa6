"""Predict words and pair labels from the encoder's hidden states: logits, loss sums, counts and hits.

The hidden states are those of a MicroBatch's whole run, or of the rows alone that it says are predicted.

Shape legend: T packed tokens, E examples, R masked rows, H hidden size, V words, L labels of a pair.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from data_pipeline.records import NO_LABEL
from pretrain.model.batch import IGNORED, MicroBatch, Predicted
from pretrain.model.encoder import ACTIVATIONS, Encoder
from pretrain.model.initialize import bare, bare_norm, bare_residual, padded
from pretrain.model.vocabulary_losses import vocabulary_cross_entropy


class Predictions(NamedTuple):
    """Sums over the rows that count: 0-d tensors on the device, so that nothing waits for it."""

    loss: Tensor  # with a gradient
    count: Tensor  # type: ignore[assignment]  # a tuple's `count` is of no use here
    hits: Tensor


class MaskedPredictions(NamedTuple):
    """Results of the masked-token head, over all predicted tokens and per kind."""

    all: Predictions
    kinds: dict[str, Predictions]
    """By name of `KINDS`, without gradients."""
    answers_R: Tensor
    """int64: the likeliest word in each row whose input is [MASK]; -1 elsewhere, and where gradients are computed."""


KINDS = ("mask", "kept", "random")
"""What a predicted token's input is: [MASK], the word itself, or another word (Devlin et al. 2019, section 3.1)."""


class WordHead(nn.Module):
    """Linear, activation, norm, then the word embeddings as the output matrix, plus one bias per word. Without
    `encoder.head_transform` the first three are left out, and the bias where the encoder has none.

    `decoder` is the embedding's own parameter, registered here as well: one tensor under one name for the
    optimizer, and ZeRO-3 gathers it for this module as for the other."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        settings = encoder.settings
        self.vocabulary_size = encoder.vocabulary_size
        self.dense = self.norm = None
        if settings.head_transform:
            self.dense = bare_residual(settings, settings.hidden, settings.embedding_width)
            self.norm = bare_norm(settings, settings.embedding_width)
        self.activation = ACTIVATIONS[settings.activation]
        self.decoder = encoder.embeddings.word.weight
        bias_V = torch.zeros(padded(self.vocabulary_size))
        self.bias = nn.Parameter(bias_V)
        self.vocabulary_rows = {"bias": self.vocabulary_size}
        if not (settings.head_transform or settings.biases):
            del self.bias
            self.vocabulary_rows = {}
            self.register_buffer("bias", bias_V, persistent=False)

    def ready(self, hidden_RH: Tensor) -> Tensor:
        """Make rows ready for the projection to words: (R, embedding size)."""
        if self.dense is None or self.norm is None:
            return hidden_RH
        return self.norm(self.activation(self.dense(hidden_RH)))

    def words(self, ready_RH: Tensor) -> Tensor:
        """Project what is ready to (R, V) logits, without padding."""
        rows = self.vocabulary_size
        return F.linear(ready_RH, self.decoder[:rows], self.bias[:rows])


class NextTokenHead(WordHead):
    """Predict a word at every token."""

    def forward(self, hidden_TH: Tensor, ids_T: Tensor) -> Predictions:
        """Compute loss, count and hits of the words `ids_T`; a row with id -1 counts nowhere."""
        found = vocabulary_cross_entropy(
            self.ready(hidden_TH), self.decoder, self.bias, ids_T, self.vocabulary_size
        )
        return Predictions(found.loss, (ids_T != IGNORED).sum(), found.hits_R.sum())

    def logits(self, hidden_TH: Tensor) -> Tensor:
        """Compute the (T, V) logits, without padding."""
        return self.words(self.ready(hidden_TH))


class MaskedTokenHead(WordHead):
    """Predict the words of the masked rows."""

    def __init__(self, encoder: Encoder, mask_id: int) -> None:
        super().__init__(encoder)
        self.mask_id = mask_id

    def forward(self, hidden_TH: Tensor, batch: Predicted) -> MaskedPredictions:
        """Compute loss, count and hits over the masked rows of the batch, in total and by kind of input."""
        return self.predictions(self.transform(hidden_TH, batch), batch)

    def predictions(self, hidden_RH: Tensor, batch: Predicted) -> MaskedPredictions:
        """Compute the same as `forward` from the output of `transform`."""
        found = vocabulary_cross_entropy(
            hidden_RH, self.decoder, self.bias, batch.masked_ids, self.vocabulary_size
        )
        whole = Predictions(found.loss, (batch.masked_ids != IGNORED).sum(), found.hits_R.sum())
        rows = rows_of_kinds(batch, self.mask_id)
        kinds = {
            kind: Predictions((found.losses_R * of_R).sum(), of_R.sum(), (found.hits_R & of_R).sum())
            for kind, of_R in rows.items()
        }
        return MaskedPredictions(whole, kinds, found.answers_R.masked_fill(~rows["mask"], IGNORED))

    def logits(self, hidden_TH: Tensor, batch: MicroBatch | Predicted) -> Tensor:
        """Compute the (R, V) logits of the masked rows, without padding."""
        return self.words(self.transform(hidden_TH, batch))

    def transform(self, hidden_TH: Tensor, batch: MicroBatch | Predicted) -> Tensor:
        """Make the masked rows ready for the projection to words: (R, embedding size)."""
        return self.ready(hidden_TH.index_select(0, batch.masked_index))


def rows_of_kinds(batch: Predicted, mask_id: int) -> dict[str, Tensor]:
    """Return an (R,) bool mask for each of `KINDS`, from input and target; spare rows are in none."""
    counted_R = batch.masked_ids != IGNORED
    mask_R = counted_R & (batch.masked_inputs == mask_id)
    kept_R = counted_R & ~mask_R & (batch.masked_inputs == batch.masked_ids)
    return {"mask": mask_R, "kept": kept_R, "random": counted_R & ~mask_R & ~kept_R}


def masked_words(batch: MicroBatch, mask_id: int) -> Tensor:
    """Find the (R,) words that are to be predicted at [MASK]; -1 in other rows."""
    _, predicted = batch.predicted(pairs=False)
    return predicted.masked_ids.masked_fill(~rows_of_kinds(predicted, mask_id)["mask"], IGNORED)


class PairHead(nn.Module):
    """tanh(Linear) of [CLS] (the pooler), then a logit for each label of the pair: whether B follows A (Devlin et al.
    2019, section 3.1), whether A and B are in their order (Lan et al. 2020, section 3.1)."""

    def __init__(self, encoder: Encoder, labels: Sequence[str]) -> None:
        super().__init__()
        hidden = encoder.settings.hidden
        self.labels = tuple(labels)
        self.pooler = bare(nn.Linear, hidden, hidden)
        self.classifier = bare(nn.Linear, hidden, len(labels))

    def forward(self, hidden_TH: Tensor, batch: MicroBatch | Predicted) -> dict[str, Predictions]:
        """Compute loss, count and hits of the pairs of each label, by its name; a pair without a label counts
        nowhere."""
        logits_EL = self.logits(hidden_TH, batch)
        logits_EL = logits_EL.to(torch.promote_types(logits_EL.dtype, torch.float32))
        losses_E = F.cross_entropy(logits_EL, batch.labels, ignore_index=NO_LABEL, reduction="none")
        right_E = logits_EL.argmax(-1) == batch.labels
        found = {}
        for number, label in enumerate(self.labels):
            chosen_E = batch.labels == number
            loss = losses_E.masked_fill(~chosen_E, 0.0).sum()
            found[label] = Predictions(loss, chosen_E.sum(), (right_E & chosen_E).sum())
        return found

    def logits(self, hidden_TH: Tensor, batch: MicroBatch | Predicted) -> Tensor:
        """Compute the (E, labels) logits."""
        return self.classifier(torch.tanh(self.pooler(hidden_TH.index_select(0, batch.cls_index))))
