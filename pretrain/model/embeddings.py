"""Embed token ids, segment ids and positions: the first hidden states, or rotations for queries and keys.

Shape legend: T packed tokens, E embedding size, N heads, D size of a head.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from pretrain.config.encoder import EncoderSettings
from pretrain.model.dropout import Dropout
from pretrain.model.initialize import bare_embedding, bare_norm, padded


class Embeddings(nn.Module):
    """LayerNorm(word + segment + position), then dropout (Devlin et al. 2019, section 3 and figure 2); with
    `encoder.segments` 0 there is no segment table and nothing is added for it (Liu et al. 2019, RoBERTa), nor is a
    position with `encoder.positions` rope. The norm is that of the settings, or none.

    The word table has a row for each entry of the padded vocabulary; no id reaches its padding."""

    def __init__(self, settings: EncoderSettings, vocabulary_size: int) -> None:
        super().__init__()
        width, learned = settings.embedding_width, settings.positions == "learned"
        self.word = bare_embedding(padded(vocabulary_size), width)
        self.position = bare_embedding(settings.max_positions, width) if learned else None
        self.segment = (
            FewRows.from_pretrained(torch.empty(settings.segments, width), freeze=False)
            if settings.segments
            else None
        )
        self.norm = bare_norm(settings, width) if settings.embedding_norm else nn.Identity()
        self.dropout = Dropout(settings.dropout)
        self.vocabulary_rows = {"word.weight": vocabulary_size}

    def forward(self, input_ids_T: Tensor, segment_ids_T: Tensor, positions_T: Tensor) -> Tensor:
        """Embed the tokens of a run: (T, E)."""
        x_TE = self.word(input_ids_T)
        if self.segment is not None:
            x_TE = x_TE + self.segment(segment_ids_T)
        if self.position is not None:
            x_TE = x_TE + self.position(positions_T)
        return self.dropout(self.norm(x_TE))


class FewRows(nn.Embedding):
    """A table of few rows, each read by very many tokens: looked up by a matrix product. Its gradient is then one, too,
    where CUDA's deterministic gradient of a lookup sorts the tokens and adds those of a row one after the other."""

    def forward(self, ids_T: Tensor) -> Tensor:
        """Look up the rows of these ids: (T, E)."""
        rows = torch.arange(self.num_embeddings, device=ids_T.device)
        return (ids_T[:, None] == rows).to(self.weight.dtype) @ self.weight


TABLES = ("word", "position", "segment")
"""The parts of Embeddings that are tables of vectors."""


class AddedTable(nn.Module):
    """The vectors of another encoder's table, without gradient, plus those of a table of its own, `delta`, that starts
    at zero (He et al. 2023, DeBERTaV3, section 3.3).

    The other table stays that encoder's submodule: its parameters have one name, and ZeRO-3 gathers them when it is
    called."""

    base: nn.Embedding

    def __init__(self, base: nn.Embedding, delta: nn.Embedding) -> None:
        super().__init__()
        object.__setattr__(self, "base", base)  # not registered a second time
        self.delta = delta
        delta.initializer_scale = 0.0  # type: ignore[assignment]  # read by `initialize`

    def forward(self, ids_T: Tensor) -> Tensor:
        """Look up the vectors of the ids: (T, E)."""
        with torch.no_grad():
            base_TE = self.base(ids_T)
        return base_TE + self.delta(ids_T)


def add_to(own: Embeddings, base: Embeddings) -> None:
    """Turn each table of `own` into what it adds to that of `base`; its norm stays its own."""
    for name in TABLES:
        if (table := getattr(own, name)) is not None:
            setattr(own, name, AddedTable(getattr(base, name), table))
    own.vocabulary_rows = {"word.delta.weight": base.vocabulary_rows["word.weight"]}


@torch.no_grad()
def add_up(module: nn.Module) -> None:
    """Put one table in place of each AddedTable in `module`: the sums in the parameters' dtype, as in an export."""
    for embeddings in module.modules():
        if not isinstance(embeddings, Embeddings) or not isinstance(embeddings.word, AddedTable):
            continue
        embeddings.vocabulary_rows = {"word.weight": embeddings.vocabulary_rows["word.delta.weight"]}
        for name in TABLES:
            if isinstance(table := getattr(embeddings, name), AddedTable):
                whole = table.base.weight + table.delta.weight
                setattr(embeddings, name, nn.Embedding.from_pretrained(whole, freeze=False))


class Rotation(NamedTuple):
    """Angles by which the halves of a head's vector are rotated at each position: cosines and sines, (T, 1, D) float32,
    equal in both halves."""

    cos_T1D: Tensor
    sin_T1D: Tensor


def rotation(positions_T: Tensor, theta: float, size: int) -> Rotation:
    """Compute the rotation of heads of `size` at these positions, with the base `theta` (Su et al. 2021, RoFormer,
    section 3.4.2), in the operations and the float32 of transformers' models, so that both have the same angles."""
    exponents_D = torch.arange(0, size, 2, dtype=torch.float32, device=positions_T.device) / size
    angles = positions_T[:, None].float() * (1.0 / theta**exponents_D)
    angles_T1D = torch.cat((angles, angles), dim=-1)[:, None]
    return Rotation(angles_T1D.cos(), angles_T1D.sin())


def rotated(x_TND: Tensor, by: Rotation) -> Tensor:
    """Rotate the two halves of each head's vector, in float32 or better; same shape and dtype."""
    x = x_TND.to(torch.promote_types(x_TND.dtype, torch.float32))
    first, second = x.chunk(2, dim=-1)
    return (x * by.cos_T1D + torch.cat((-second, first), dim=-1) * by.sin_T1D).to(x_TND.dtype)
