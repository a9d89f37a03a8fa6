"""Encode packed tokens in two streams, as XLNet does: what a token is, and what its place predicts without it.

(Yang et al. 2019, XLNet, sections 2.3 to 2.5; zihangdai/xlnet, modeling.py.)

An example is [CLS] first in the shards and [CLS] last in XLNet (zihangdai/xlnet, data_utils.py): its tiles list its
first row last, and nothing is moved in the packed run. The memory comes before the example. With `backwards_E` it may
be of the text after the example: such an example's tiles list all its rows from the last to the first, so that the
memory still comes before them, and its distances have the other sign.

Shape legend: T packed tokens, R target rows, P rows that ask (those of one stream or of both), X rows of the run and
of the memory, E examples, S length of a tile, M length of the memory, K keys (M + S), W directions, L distances, N
heads, D size of a head, H hidden size (N * D).
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from data_pipeline.io.npy import offsets_of
from pretrain.config.encoder import EncoderSettings
from pretrain.config.settings import CLS_SEGMENT
from pretrain.model import encoder
from pretrain.model.attention_tiles import Tile, to_device
from pretrain.model.batch import MicroBatch
from pretrain.model.initialize import bare, bare_embedding, padded
from pretrain.model.ops import Dropout

# The plan of one forward pass: the tiles of both streams, what is seen in them, and what is remembered.


class StreamTile(NamedTuple):
    """Examples of near-equal lengths, in XLNet's order of tokens. Keys are the memory, then the tokens."""

    backwards_E: Tensor | None  # int64: 1 where the memory is of the text after the example; None: nowhere

    rows_ES: Tensor  # int64, of the packed run; padding repeats the example's [CLS]
    keys_EK: Tensor  # int64, of the packed run with the memory's rows after it
    targets_ES: Tensor  # int64, of the target rows; R where a token is none
    content_E1SK: Tensor  # bool: keys hidden from the content stream
    query_E1SK: Tensor  # bool: keys hidden from the query stream: these, and the token itself
    differs_E1SK: Tensor  # bool: whether query and key are of different segments


@dataclass(frozen=True, eq=False)
class StreamPlan:
    """Everything that the layers of one forward pass share."""

    tiles: tuple[StreamTile, ...]
    back_T: Tensor
    """int64: the row of each token in the rows of all tiles."""
    targets_R: Tensor
    """int64: the rows of the run that the query stream predicts."""
    kept_EM: Tensor
    """int64: what is remembered next, rows of the packed run with the memory's rows after it."""
    longest: int
    memory_length: int

    def remember(self, content_TH: Tensor, memory_EMH: Tensor) -> Tensor:
        """Return the memory of a layer's input for the next step, (E, M, H) without a gradient: the last M states of
        the memory and the example together (Dai et al. 2019, section 3.2)."""
        states = torch.cat((content_TH, memory_EMH.flatten(0, 1).to(content_TH.dtype))).detach()
        return states.index_select(0, self.kept_EM.flatten()).view_as(memory_EMH)


def plan_streams(
    batch: MicroBatch,
    ranks_T: Tensor | None,
    memory_length: int,
    heads: int,
    backwards_E: Tensor | None = None,
) -> StreamPlan:
    """Plan for the batch's examples and its masked rows as targets.

    `ranks_T` (T,) int64 is a factorization order: a token sees those of its example whose rank is not above its own
    (Yang et al. 2019, section 2.3); None: all see all. `backwards_E` (E,) bool: the memory of these examples is of the
    text after them; None: of none. No value is read from the device."""
    device, tokens = batch.input_ids.device, batch.tokens
    segments_T = batch.segment_ids.masked_fill(batch.positions == 0, CLS_SEGMENT)
    target_of_T = _target_of(batch)
    tiles, back, back_reversed = [], np.zeros(tokens, np.int64), np.zeros(tokens, np.int64)
    longest, done = 1, 0
    offsets = offsets_of(np.asarray(batch.lengths, np.int64))
    for tile in batch.packing.tiles(heads, device).tiles:
        rows, reversed_rows, is_padding = _cls_last(tile)
        real = done + np.flatnonzero(~is_padding.ravel())
        back[rows[~is_padding]], back_reversed[reversed_rows[~is_padding]] = real, real
        longest, done = max(longest, tile.length), done + rows.size
        examples = np.searchsorted(offsets, tile.tokens_ES[:, 0], side="right") - 1
        past = tokens + examples[:, None] * memory_length + np.arange(memory_length)
        keys_EK = to_device(np.concatenate((past, rows), 1), device)
        of_tile_E = None
        if backwards_E is not None:
            of_tile_E = backwards_E[to_device(examples, device)]
            reversed_EK = to_device(np.concatenate((past, reversed_rows), 1), device)
            keys_EK = torch.where(of_tile_E[:, None], reversed_EK, keys_EK)
            of_tile_E = of_tile_E.long()
        rows_ES = keys_EK[:, memory_length:]
        segments_ES = segments_T[rows_ES]
        hidden_ESS = _hidden(to_device(is_padding, device), rows_ES, ranks_T)
        itself = torch.eye(tile.length, dtype=torch.bool, device=device)
        differs = F.pad(segments_ES, (memory_length, 0))[:, None, :] != segments_ES[:, :, None]
        content, query = (
            F.pad(hidden, (memory_length, 0), value=False)[:, None]
            for hidden in (hidden_ESS, hidden_ESS | itself)
        )
        targets_ES = target_of_T[rows_ES]
        tiles.append(StreamTile(of_tile_E, rows_ES, keys_EK, targets_ES, content, query, differs[:, None]))
    back_T = to_device(back, device)
    if backwards_E is not None:
        backwards_T = backwards_E[batch.example_index]
        back_T = torch.where(backwards_T, to_device(back_reversed, device), back_T)
    kept_EM = _kept(batch, memory_length, backwards_E)
    return StreamPlan(tuple(tiles), back_T, batch.masked_index, kept_EM, longest, memory_length)


def _cls_last(tile: Tile) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Return the rows (E, S) of a tile with each example's first row last, the same with the others in reverse, and
    where they are padding."""
    first, lengths = tile.tokens_ES[:, :1], tile.positions_ES[:, -1:] + 1
    column = np.arange(tile.length)
    rows = first + np.where(column < lengths - 1, column + 1, 0)
    return rows, first + np.maximum(lengths - 1 - column, 0), column >= lengths


def _hidden(is_padding_ES: Tensor, rows_ES: Tensor, ranks_T: Tensor | None) -> Tensor:
    hidden_ESS = is_padding_ES[:, None, :].expand(-1, rows_ES.shape[1], -1)
    if ranks_T is None:
        return hidden_ESS
    ranks_ES = ranks_T[rows_ES]
    return hidden_ESS | (ranks_ES[:, None, :] > ranks_ES[:, :, None])


def _target_of(batch: MicroBatch) -> Tensor:
    """Return (T,) int64, the target row of each token; R for a token that is none. Of a token that is one twice, as
    with spare rows, any."""
    rows_R = batch.masked_index
    targets = torch.full((batch.tokens,), len(rows_R), dtype=torch.int64, device=rows_R.device)
    return targets.scatter(0, rows_R, torch.arange(len(rows_R), device=rows_R.device))


def _kept(batch: MicroBatch, memory_length: int, backwards_E: Tensor | None) -> Tensor:
    cumulative = batch.cu_seqlens.long()
    start_E1, lengths_E1 = cumulative[:-1, None], cumulative.diff()[:, None]
    place_M = torch.arange(memory_length, device=cumulative.device)
    position_EM = lengths_E1 + place_M - memory_length  # in the example; negative: in the memory
    row_EM = start_E1 + torch.where(position_EM < lengths_E1 - 1, position_EM + 1, 0)
    if backwards_E is not None:
        row_EM = torch.where(backwards_E[:, None], start_E1 + lengths_E1 - 1 - position_EM, row_EM)
    example_E1 = torch.arange(len(lengths_E1), device=cumulative.device)[:, None]
    past_EM = batch.tokens + example_E1 * memory_length + lengths_E1 + place_M
    return torch.where(position_EM < 0, past_EM, row_EM)


# Attention with relative positions and relative segments, from two streams of queries to one of keys.
#
# The score of a query and a key is (q + u) k' + (q + v) r' + (q + w) s', over the root of a head's size: r is the
# projected sinusoid of their distance (Dai et al. 2019, Transformer-XL, section 3.3), s one of two vectors, for the
# same segment and for another (Yang et al. 2019, XLNet, section 2.5). u, v and w are learnt for each head.
#
# The terms of position and segment are added to torch's attention as a bias. So a pair of query and key takes three
# products where BERT's takes two, and each layer keeps an (E, N, S, K) bias of every tile for the backward pass, in
# either stream; the query stream's is computed for all tokens, of which a sixth are targets.


SLOWEST = 10_000
"""Ratio of the longest wavelength of the sinusoids to the shortest."""


def sinusoids(
    longest: int, memory_length: int, hidden: int, device: torch.device, both_directions: bool = False
) -> Tensor:
    """Compute the (W, L, H) vectors of the distances M + S, ..., -S + 1 of examples of up to S = `longest` tokens:
    sines, then cosines, float32 as in the published code. With `both_directions` there are two rows of W, the second
    one for -M - S, ..., S - 1."""
    distance_L = torch.arange(memory_length + longest, -longest, -1, device=device).float()
    exponents = torch.arange(0, hidden, 2, device=device).float() / hidden
    angles = distance_L[:, None] * (1 / torch.pow(SLOWEST, exponents))
    ways = torch.stack((angles, -angles)) if both_directions else angles[None]
    return torch.cat((ways.sin(), ways.cos()), dim=-1)[..., :hidden]


def by_place(x_ENSL: Tensor, keys: int) -> Tensor:
    """Turn a column for each distance into one for each key: (..., S, K + S) -> (..., S, K).

    Column c of every row is of distance K - c; the result has distance M + i - k in row i and column k, M = K - S.
    Each row is one column further than the row above it, which is a change of strides (Dai et al. 2019, appendix B)."""
    *others, rows, columns = x_ENSL.shape
    shifted = x_ENSL.reshape(*others, columns, rows)[..., 1:, :].reshape(*others, rows, columns - 1)
    return shifted[..., :keys]


class RelativeAttention(nn.Module):
    """Multi-head attention of both streams, with the same matrices and none of their biases.

    u, v and w are called after what they are added for; their names do not end like a bias's, which would start from
    0."""

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__()
        hidden, heads = settings.hidden, settings.heads
        self.heads, self.size = heads, hidden // heads
        self.dropout = settings.attention_dropout
        self.query = bare(nn.Linear, hidden, hidden, bias=False)
        self.key = bare(nn.Linear, hidden, hidden, bias=False)
        self.value = bare(nn.Linear, hidden, hidden, bias=False)
        self.relative = bare(nn.Linear, hidden, hidden, bias=False)
        self.output = bare(nn.Linear, hidden, hidden, bias=False)
        self.for_content = nn.Parameter(torch.empty(heads, self.size))
        self.for_position = nn.Parameter(torch.empty(heads, self.size))
        self.for_segment = nn.Parameter(torch.empty(heads, self.size))
        self.segments = nn.Parameter(torch.empty(2, heads, self.size))

    def forward(
        self,
        asking_PH: Tensor,
        content_TH: Tensor,
        memory_EMH: Tensor | None,
        distances_WLH: Tensor,
        plan: StreamPlan,
        content_rows: int,
    ) -> Tensor:
        """Compute (P, H) for the rows that ask: the first `content_rows` of them (all tokens, or none) are the content
        stream's, the others the query stream's (the plan's targets, or none)."""
        q_PND = self._by_head(self.query(asking_PH))
        keyed = content_TH if memory_EMH is None else torch.cat((content_TH, memory_EMH.flatten(0, 1)))
        k_XND, v_XND = self._by_head(self.key(keyed)), self._by_head(self.value(keyed))
        r_WNLD = self._by_head(self.relative(distances_WLH)).transpose(1, 2)
        content, query = q_PND[:content_rows], q_PND[content_rows:]
        query = torch.cat(
            (query, query.new_zeros(1, *query.shape[1:]))
        )  # asked for by tokens that are no target
        of_content, of_query = [], []
        for tile in plan.tiles:
            k, v = (_tiled(x, tile.keys_EK) for x in (k_XND, v_XND))
            first = plan.longest - tile.rows_ES.shape[1]
            r = r_WNLD[:, :, first : first + tile.rows_ES.shape[1] + tile.keys_EK.shape[1]]
            if tile.backwards_E is not None:
                r = r.index_select(0, tile.backwards_E)
            if content_rows:
                q = _tiled(content, tile.rows_ES)
                of_content.append(self._attend(q, k, v, r, tile, tile.content_E1SK))
            if len(asking_PH) > content_rows or not content_rows:  # every parameter gets a gradient, if 0
                q = _tiled(query, tile.targets_ES)
                of_query.append(self._attend(q, k, v, r, tile, tile.query_E1SK))
        attended = []
        if of_content:
            attended.append(torch.cat(of_content).index_select(0, plan.back_T))
        if of_query:
            attended.append(torch.cat(of_query).index_select(0, plan.back_T[plan.targets_R]))
        return self.output(torch.cat(attended))

    def _attend(
        self,
        q_ENSD: Tensor,
        k_ENKD: Tensor,
        v_ENKD: Tensor,
        r_ENLD: Tensor,
        tile: StreamTile,
        hidden_E1SK: Tensor,
    ) -> Tensor:
        """Attend in one tile: (E * S, H), 0 for a query that sees no key."""
        position = by_place((q_ENSD + self.for_position[:, None]) @ r_ENLD.transpose(-1, -2), k_ENKD.shape[2])
        segment = (q_ENSD + self.for_segment[:, None]) @ self.segments.permute(1, 2, 0)
        segment = torch.where(tile.differs_E1SK, segment[..., 1:], segment[..., :1])
        bias = ((position + segment) * self.size**-0.5).masked_fill(
            hidden_E1SK, torch.finfo(position.dtype).min
        )
        dropout = self.dropout if self.training else 0.0
        seen = F.scaled_dot_product_attention(
            q_ENSD + self.for_content[:, None], k_ENKD, v_ENKD, attn_mask=bias, dropout_p=dropout
        )
        seen = seen.masked_fill(hidden_E1SK.all(-1, keepdim=True), 0.0)
        return seen.transpose(1, 2).flatten(0, 1).flatten(-2)

    def _by_head(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, self.size))


def _tiled(x_XND: Tensor, rows_ES: Tensor) -> Tensor:
    """Gather the rows of a tile: (E, N, S, D)."""
    return x_XND.index_select(0, rows_ES.flatten()).unflatten(0, rows_ES.shape).transpose(1, 2)


# The encoder: embeddings, layers and memory of both streams.


class Streams(NamedTuple):
    """The last hidden states."""

    content_TH: Tensor | None
    """Of all tokens; None where they were not asked for."""
    query_RH: Tensor
    """Of the batch's masked rows, without what their tokens are."""
    memory: Tensor | None
    """(E, layers, M, H), for the next step; None without a memory."""


class StreamEmbeddings(nn.Module):
    """Words for the content stream, one vector for every target for the query stream; neither positions nor a
    LayerNorm."""

    def __init__(self, settings: EncoderSettings, vocabulary_size: int) -> None:
        super().__init__()
        self.word = bare_embedding(padded(vocabulary_size), settings.hidden)
        self.target = nn.Parameter(torch.empty(settings.hidden))
        self.dropout = Dropout(settings.dropout)
        self.vocabulary_rows = {"word.weight": vocabulary_size}

    def forward(self, input_ids_T: Tensor, targets: int) -> tuple[Tensor, Tensor]:
        """Return (T, H) of the tokens and (R, H) of `targets` targets."""
        return self.dropout(self.word(input_ids_T)), self.dropout(self.target.expand(targets, -1))


class FeedForward(encoder.FeedForward):
    """BERT's, with dropout behind the activation as well."""

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__(settings)
        self.dropout = Dropout(settings.dropout)

    def forward(self, x_TH: Tensor) -> Tensor:
        return self.output(self.dropout(self.activation(self.intermediate(x_TH))))


class TwoStreamLayer(nn.Module):
    """Post-LayerNorm, as BERT's: both streams as rows of one run."""

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__()
        self.attention = RelativeAttention(settings)
        self.attention_norm = bare(nn.LayerNorm, settings.hidden, eps=settings.layer_norm_eps)
        self.feed_forward = FeedForward(settings)
        self.feed_forward_norm = bare(nn.LayerNorm, settings.hidden, eps=settings.layer_norm_eps)
        self.dropout = Dropout(settings.dropout)

    def forward(
        self,
        content_TH: Tensor,
        query_RH: Tensor,
        memory_EMH: Tensor | None,
        distances_WLH: Tensor,
        plan: StreamPlan,
        with_content: bool,
    ) -> tuple[Tensor, Tensor]:
        """Compute (T, H) and (R, H); without `with_content` (0, H) instead of the first."""
        rows = len(content_TH) if with_content else 0
        x_PH = torch.cat((content_TH[:rows], query_RH))
        attended = self.attention(x_PH, content_TH, memory_EMH, distances_WLH, plan, rows)
        x_PH = self.attention_norm(x_PH + self.dropout(attended))
        x_PH = self.feed_forward_norm(x_PH + self.dropout(self.feed_forward(x_PH)))
        return x_PH[:rows], x_PH[rows:]


class TwoStreamEncoder(nn.Module):
    """XLNet's encoder over packed tokens, with an optional memory of what came before each example.

    Its parameters are not set yet: call `initialize` or `load_parameters` on the module that holds it. With
    `activation_checkpointing` each layer keeps only its inputs."""

    def __init__(
        self, settings: EncoderSettings, vocabulary_size: int, activation_checkpointing: bool = False
    ) -> None:
        super().__init__()
        self.settings, self.vocabulary_size = settings, vocabulary_size
        self.activation_checkpointing = activation_checkpointing
        self.embeddings = StreamEmbeddings(settings, vocabulary_size)
        self.layers = nn.ModuleList(TwoStreamLayer(settings) for _ in range(settings.layers))
        self.dropout = Dropout(settings.dropout)

    def forward(
        self,
        batch: MicroBatch,
        ranks_T: Tensor | None = None,
        memory: Tensor | None = None,
        with_content: bool = False,
        backwards_E: Tensor | None = None,
    ) -> Streams:
        """Encode the batch's tokens, and its masked rows from what they see of the others.

        `ranks_T` as in `plan_streams`; `memory` (E, layers, M, H) of each example's stream, seen by all its tokens as
        text before it, of segment 0, or as text after it where `backwards_E` (E,) bool says so. The last layer computes
        the content stream only `with_content`: in pretraining nothing reads it."""
        length = 0 if memory is None else memory.shape[2]
        plan = plan_streams(batch, ranks_T, length, self.settings.heads, backwards_E)
        content_TH, query_RH = self.embeddings(batch.input_ids, len(batch.masked_index))
        both = backwards_E is not None
        distances_WLH = sinusoids(plan.longest, length, self.settings.hidden, content_TH.device, both)
        distances_WLH = self.dropout(distances_WLH.to(content_TH.dtype))
        recompute = self.activation_checkpointing and self.training and torch.is_grad_enabled()
        remembered = []
        for number, layer in enumerate(self.layers):
            past_EMH = None
            if memory is not None:
                past_EMH = memory[:, number].to(content_TH.dtype)
                remembered.append(plan.remember(content_TH, past_EMH))
            wanted = with_content or number < len(self.layers) - 1
            given = (content_TH, query_RH, past_EMH, distances_WLH, plan, wanted)
            if recompute:
                content_TH, query_RH = checkpoint(layer, *given, use_reentrant=False)
            else:
                content_TH, query_RH = layer(*given)
        return Streams(
            self.dropout(content_TH) if with_content else None,
            self.dropout(query_RH),
            torch.stack(remembered, 1) if remembered else None,
        )
