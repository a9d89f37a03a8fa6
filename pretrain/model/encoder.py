"""Encode packed tokens into one hidden state each, and count the operations.

Shape legend: T packed tokens, P rows that are asked for, E embedding size, H hidden size, N heads, M heads of keys
and values, D size of a head (N * D = H).
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from pretrain.config.encoder import HALVES, EncoderSettings, owner_of
from pretrain.model.attention import Packing, attend
from pretrain.model.attention_tiles import FULL, Visibility
from pretrain.model.batch import MicroBatch
from pretrain.model.initialize import bare, bare_embedding, bare_norm, bare_residual, padded
from pretrain.model.ops import Dropout

# Embeddings of token ids, segment ids and positions: the first hidden states, or rotations for queries and keys.


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


# The floating-point operations of a forward and backward pass: those of the model, on real tokens.
#
# A matrix product costs 6 operations per weight and token: 2 forward, 4 backward (Kaplan et al. 2020, section 2.1).
# Attention costs 12 h per pair of query and key that see each other, h being the hidden size (Narayanan et al. 2021).
# No recomputation, no padding. A weight that several layers share is counted in each of them.


def encoder_flops(
    settings: EncoderSettings, tokens: int, squares: int, visibility: Visibility = FULL
) -> float:
    """Count the operations of the matrices over examples with `tokens` tokens in all, whose squared lengths sum
    to `squares`."""
    hidden = settings.hidden
    weights = settings.layers * layer_weights(settings)
    if settings.embedding_width != hidden:
        weights += settings.embedding_width * hidden
    windowed = visibility._replace(window=settings.local_reach)
    local = sum(map(settings.is_local, range(settings.layers)))
    pairs = (settings.layers - local) * seen_pairs(visibility, tokens, squares)
    pairs += local * seen_pairs(windowed, tokens, squares)
    return float(6 * weights * tokens + 12 * hidden * pairs)


def layer_weights(settings: EncoderSettings) -> int:
    """Count the elements of the matrices of one layer."""
    keys = settings.key_heads * settings.head_size
    products = 3 if settings.gated else 2
    return settings.hidden * (2 * settings.hidden + 2 * keys + products * settings.intermediate)


def projection_flops(settings: EncoderSettings, vocabulary: int, rows: int) -> float:
    """Count the operations of the head's dense layer, if any, and the projection of `rows` rows to `vocabulary`
    words."""
    dense = settings.hidden if settings.head_transform else 0
    return float(6 * settings.embedding_width * (dense + vocabulary) * rows)


def seen_pairs(visibility: Visibility, tokens: int, squares: int) -> int:
    """Count the pairs of query and key in examples with `tokens` tokens in all, whose squared lengths sum to `squares`;
    with a window, at most, since only their sums are known. Ranks see half of all pairs, as a causal order does."""
    pairs = squares
    if visibility.window:
        pairs = min(pairs, tokens * (2 * visibility.window + 1))
    return (pairs + tokens) // 2 if visibility.causal or visibility.ranked else pairs


# One encoder layer, from hidden states to hidden states.


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "gelu": F.gelu,
    "relu": torch.relu,
    "silu": F.silu,
}
"""Activations by the name in `encoder.activation`."""


class SelfAttention(nn.Module):
    """Multi-head self-attention within each example.

    Query, key and value are three matrices, not one: LAMB's trust ratio is a tensor's, and three separate
    modules are gathered by ZeRO-3 like any other."""

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__()
        self.size = settings.head_size
        self.dropout = settings.attention_dropout
        hidden, biases = settings.hidden, settings.biases
        keys = settings.key_heads * settings.head_size
        self.query = bare(nn.Linear, hidden, hidden, bias=biases)
        self.key = bare(nn.Linear, hidden, keys, bias=biases)
        self.value = bare(nn.Linear, hidden, keys, bias=biases)
        self.output = bare_residual(settings, hidden, hidden)

    def forward(
        self,
        x_TH: Tensor,
        packing: Packing,
        rows_P: Tensor | None = None,
        visibility: Visibility = FULL,
        by: Rotation | None = None,
    ) -> Tensor:
        """Compute (T, H), or (P, H) for the given rows of the run; with `by`, queries and keys are rotated."""
        q_TND, k_TMD, v_TMD = (
            project(x_TH).unflatten(-1, (-1, self.size)) for project in (self.query, self.key, self.value)
        )
        if by is not None:
            q_TND, k_TMD = rotated(q_TND, by), rotated(k_TMD, by)
        dropout = self.dropout if self.training else 0.0
        attended_TND = attend(q_TND, k_TMD, v_TMD, packing, dropout, visibility)
        return self.output(_of_rows(attended_TND.flatten(-2), rows_P))


class FeedForward(nn.Module):
    """Linear, activation, Linear, on each token; with a gate, the activation's result times a second Linear of the
    input (Shazeer 2020)."""

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__()
        sizes = (settings.hidden, settings.intermediate)
        self.intermediate = bare(nn.Linear, *sizes, bias=settings.biases)
        self.gate = bare(nn.Linear, *sizes, bias=settings.biases) if settings.gated else None
        self.output = bare_residual(settings, settings.intermediate, settings.hidden)
        self.activation = ACTIVATIONS[settings.activation]

    def forward(self, x_TH: Tensor) -> Tensor:
        activated = self.activation(self.intermediate(x_TH))
        return self.output(activated if self.gate is None else activated * self.gate(x_TH))


class Layer(nn.Module):
    """Post-norm: x = norm(x + drop(attention(x))); x = norm(x + drop(feed_forward(x))).
    Pre-norm: x = x + drop(attention(norm(x))); x = x + drop(feed_forward(norm(x))); `first`: without the first norm.

    `attention` and `feed_forward` are layers whose half, with its norm, this one uses too (`owner_of` says which
    share). It stays their submodule alone: the parameters have one name, and ZeRO-3, which hooks a module once for each
    parent, hooks it once."""

    attention: SelfAttention
    attention_norm: nn.Module
    feed_forward: FeedForward
    feed_forward_norm: nn.Module

    def __init__(
        self,
        settings: EncoderSettings,
        attention: "Layer | None" = None,
        feed_forward: "Layer | None" = None,
        first: bool = False,
    ) -> None:
        super().__init__()
        self.pre = settings.norm_place == "pre"
        if attention is None:
            self.attention = SelfAttention(settings)
            normed = self.pre and first and settings.embedding_norm
            self.attention_norm = nn.Identity() if normed else bare_norm(settings, settings.hidden)
        else:
            _use(self, attention, "attention")
        if feed_forward is None:
            self.feed_forward = FeedForward(settings)
            self.feed_forward_norm = bare_norm(settings, settings.hidden)
        else:
            _use(self, feed_forward, "feed_forward")
        self.dropout = Dropout(settings.dropout)
        rate = settings.attention_output_dropout
        self.attention_output_dropout = Dropout(settings.dropout if rate < 0 else rate)

    def forward(
        self,
        x_TH: Tensor,
        packing: Packing,
        rows_P: Tensor | None = None,
        visibility: Visibility = FULL,
        by: Rotation | None = None,
    ) -> Tensor:
        """Compute (T, H), or (P, H) for the given rows of the run: everything after attention is computed for these
        only."""
        read_TH = self.attention_norm(x_TH) if self.pre else x_TH
        attended = self.attention_output_dropout(self.attention(read_TH, packing, rows_P, visibility, by))
        x_PH = _of_rows(x_TH, rows_P) + attended
        if self.pre:
            return x_PH + self.dropout(self.feed_forward(self.feed_forward_norm(x_PH)))
        x_PH = self.attention_norm(x_PH)
        return self.feed_forward_norm(x_PH + self.dropout(self.feed_forward(x_PH)))


def _use(layer: Layer, owner: Layer, half: str) -> None:
    for name in HALVES[half]:
        object.__setattr__(layer, name, getattr(owner, name))  # not registered a second time


def _of_rows(x_TH: Tensor, rows_P: Tensor | None) -> Tensor:
    return x_TH if rows_P is None else x_TH.index_select(0, rows_P)


# The whole encoder, and the checks of its settings.


class Encoder(nn.Module):
    """BERT's encoder (Devlin et al. 2019) over packed tokens: no padding, no ranks, any device and dtype. Its settings
    make of it what came later: norms before the halves of a layer, RoPE, gates, local layers (Warner et al. 2024,
    ModernBERT), RMSNorm and grouped heads (Boizard et al. 2025, EuroBERT).

    Its parameters are not set yet: call `initialize` or `load_parameters` on the module that holds it. With
    `activation_checkpointing` each layer keeps only its input and is recomputed in the backward pass, with the same
    dropout. `embeddings` are those of another encoder, which this one shares: they are that one's submodule, not
    this one's, since ZeRO-3 hooks a module once for each parent. With `settings.sharing` layers use parameters of
    earlier ones (`owner_of`)."""

    def __init__(
        self,
        settings: EncoderSettings,
        vocabulary_size: int,
        activation_checkpointing: bool = False,
        embeddings: Embeddings | None = None,
    ) -> None:
        super().__init__()
        self.settings = settings
        self.vocabulary_size = vocabulary_size
        self.activation_checkpointing = activation_checkpointing
        if embeddings is None:
            self.embeddings = Embeddings(settings, vocabulary_size)
        else:
            object.__setattr__(self, "embeddings", embeddings)
        self.projection: nn.Linear | None = None
        if settings.embedding_width != settings.hidden:
            self.projection = bare(nn.Linear, settings.embedding_width, settings.hidden)
        layers: list[Layer] = []
        for number in range(settings.layers):
            owners = {half: owner_of(settings, number, half) for half in HALVES}
            shared = {half: layers[owner] for half, owner in owners.items() if owner < number}
            layers.append(Layer(settings, **shared, first=number == 0))
        self.layers = nn.ModuleList(layers)
        pre = settings.norm_place == "pre"
        self.final_norm = bare_norm(settings, settings.hidden) if pre else nn.Identity()

    def forward(
        self, batch: MicroBatch, rows_P: Tensor | None = None, visibility: Visibility = FULL
    ) -> Tensor:
        """Compute the hidden states (T, H) of the batch's tokens, in the parameters' dtype, with attention limited
        by `visibility`.

        With `rows_P`, the rows of the run that heads read, (P, H) of these: the last layer computes no others. A row
        may come twice. In pretraining they are a sixth of all."""
        x_TE = self.embeddings(batch.input_ids, batch.segment_ids, batch.positions)
        x_TH = x_TE if self.projection is None else self.projection(x_TE)
        recompute = self.activation_checkpointing and self.training and torch.is_grad_enabled()
        windowed = visibility._replace(window=self.settings.local_reach)
        everywhere, nearby = self._rotations(batch.positions)
        packing = batch.packing
        if recompute and torch.compiler.is_compiling():  # torch 2.11 guards all that `checkpoint` is given
            packing = replace(packing, lengths=())
        for number, layer in enumerate(self.layers):
            local = self.settings.is_local(number)
            rows = rows_P if number == len(self.layers) - 1 else None
            reach, turned = (windowed, nearby) if local else (visibility, everywhere)
            given = (x_TH, packing, rows, reach, turned)
            x_TH = checkpoint(layer, *given, use_reentrant=False) if recompute else layer(*given)
        return self.final_norm(x_TH)

    def _rotations(self, positions_T: Tensor) -> tuple[Rotation | None, Rotation | None]:
        """Compute the rotations of global and of local layers; None where positions are learned."""
        settings = self.settings
        if settings.positions == "learned":
            return None, None
        thetas = (settings.rope_theta, settings.local_rope_theta)
        first, second = (rotation(positions_T, theta, settings.head_size) for theta in thetas)
        return first, second


def set_thetas(module: nn.Module, settings: EncoderSettings) -> None:
    """Let every encoder in `module` that rotates use the thetas of `settings`: they are no parameters, and may change
    between phases."""
    for encoder in module.modules():
        if isinstance(encoder, Encoder) and encoder.settings.positions == "rope":
            encoder.settings = replace(
                encoder.settings,
                rope_theta=settings.rope_theta,
                local_rope_theta=settings.local_rope_theta,
            )
