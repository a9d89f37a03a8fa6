"""Define the BiLSTM that reads an encoder's hidden states (Devlin et al. 2019, sections 5.1 and 5.3)."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

WIDTH, LAYERS = 768, 2
"""The paper does not say whether 768 is the width of each direction or of both: here both. Nor does it state the layers
of section 5.1: here as many as in 5.3."""


class Read(NamedTuple):
    """What a BiLSTM says of texts."""

    states: Tensor
    """(examples, tokens, WIDTH): of each token; 0 in padding."""
    ends: Tensor
    """(examples, WIDTH): of each text, where either direction has read all of it."""


class BiLstm(nn.LSTM):
    """A BiLSTM over texts that are padded at either side."""

    def __init__(self, width: int) -> None:
        """`width`: of the vectors that it reads."""
        super().__init__(width, WIDTH // 2, LAYERS, batch_first=True, bidirectional=True)

    def read(self, vectors: Tensor, attention_mask: Tensor) -> Read:
        """Read (examples, tokens, width) vectors where the (examples, tokens) mask is 1."""
        # an LSTM packs rows that begin at the left: those that are padded there are turned round and back
        places = torch.arange(attention_mask.shape[1], device=attention_mask.device)
        turns = (attention_mask.argmax(1)[:, None] + places) % attention_mask.shape[1]
        packed = pack_padded_sequence(
            vectors.gather(1, turns[..., None].expand_as(vectors)),
            attention_mask.sum(1).cpu(),
            batch_first=True,
            enforce_sorted=False,
        )
        out, (ends, _) = self(packed)
        states, _ = pad_packed_sequence(out, batch_first=True, total_length=attention_mask.shape[1])
        states = torch.zeros_like(states).scatter(1, turns[..., None].expand_as(states), states)
        return Read(states, torch.cat([ends[-2], ends[-1]], -1))
