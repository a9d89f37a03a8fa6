"""Describe which tokens see which, plan the dense tiles of a micro-batch, and attend within these tiles.

The examples of a micro-batch are sorted by length and cut into tiles; each is a dense (examples, heads, length, size)
block, padded to its longest example. The plan depends on the lengths alone, so it is made once per micro-batch and
used in every layer, forward and backward. Heads of queries that share a head of keys are rows of one matrix of queries,
so that its keys are neither repeated nor their gradients added up apart.

Where tokens see a window, long examples are cut into blocks of queries with the keys around them, which are in up to
three blocks.

Shape legend: T packed tokens, N heads, M heads of keys and values, D size of a head, P rows of all tiles (sum of
E*N*S), R rows of their keys (sum of E*M*K), E examples or blocks of a tile, S queries and K keys of each.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from data_pipeline.io.npy import offsets_of


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Return the array as a tensor on `device`; on a CPU it shares the array's memory.

    To a GPU by way of page-locked memory, which torch keeps until the copy is done: a copy of any other memory makes
    the host wait until the device has finished all that it was given before."""
    tensor = torch.from_numpy(array)
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


# Which tokens see which. Every backend of attention takes this one description: the whole example (BERT), the past
# (left-to-right models), a window (local layers of ModernBERT), or an order of its own for each example (the
# factorization orders of XLNet).


class Visibility(NamedTuple):
    """Which keys a query sees, of those in its own example: the ones that pass every limit set here."""

    causal: bool = False
    """A query sees no later key."""
    window: int = 0
    """A query sees keys at most so many tokens away, before and after; 0: no limit."""
    query_ranks_T: Tensor | None = None
    """int64: a query sees keys whose rank is not above its own; given together with `key_ranks_T`. The two streams of
    Yang et al. 2019 (XLNet, section 2.3) are two pairs of ranks: the content stream has the place of each token in the
    factorization order for both, the query stream that place less one for its queries."""
    key_ranks_T: Tensor | None = None

    @property
    def full(self) -> bool:
        """Whether all see all."""
        return not self.causal and not self.window and not self.ranked

    @property
    def ranked(self) -> bool:
        """Whether ranks limit what is seen: only backends of dense tiles can do that."""
        return self.query_ranks_T is not None


FULL = Visibility()
"""All tokens of an example attend to all of them."""
CAUSAL = Visibility(causal=True)
"""All tokens attend to themselves and what is before them."""


class Places(NamedTuple):
    """Where the rows of a tile are: (E, S) int64 each. Padding has its example's last token's."""

    positions_ES: Tensor
    """In their examples."""
    tokens_ES: Tensor
    """In the packed run."""


def visible(visibility: Visibility, queries: Places, keys: Places) -> Tensor:
    """Compute an (E, 1, S, K) bool mask: whether the query of each row of a tile sees the key of each column. A padded
    query sees what its example's last token sees."""
    query_E1S1, key_E11K = queries.positions_ES[:, None, :, None], keys.positions_ES[:, None, None, :]
    shape = torch.broadcast_shapes(query_E1S1.shape, key_E11K.shape)
    seen = torch.ones(shape, dtype=torch.bool, device=key_E11K.device)
    if visibility.causal:
        seen &= key_E11K <= query_E1S1
    if visibility.window:
        seen &= (key_E11K - query_E1S1).abs() <= visibility.window
    if visibility.query_ranks_T is not None and visibility.key_ranks_T is not None:
        query_ranks_ES = visibility.query_ranks_T[queries.tokens_ES]
        key_ranks_EK = visibility.key_ranks_T[keys.tokens_ES]
        seen &= key_ranks_EK[:, None, None, :] <= query_ranks_ES[:, None, :, None]
    return seen


# The plan: which rows of the packed run are in which tile.

# Cost of one more tile, in attention scores: about 30 kernel launches against one exponential and
# four multiply-adds per score. A GPU computes scores a thousand times faster but launches kernels no faster.
_TILE_OVERHEAD = {"cpu": 6_000, "cuda": 4_000_000}
_SMALLEST_BLOCK = 32


@dataclass(frozen=True)
class Tile:
    """One dense block: whole examples, whose tokens are queries and keys, or blocks of queries with the keys in their
    reach."""

    examples: int  # or blocks
    length: int  # queries of each
    bias_E11S: Tensor | None  # float32: 0 at tokens, -inf at padded keys; None where there are none
    positions_ES: NDArray[
        np.int64
    ]  # place of each query in its example; padding has its example's last token's
    tokens_ES: NDArray[np.int64]  # the same in the packed run
    key_positions_EK: NDArray[np.int64]  # of the keys: the same arrays for whole examples
    key_tokens_EK: NDArray[np.int64]

    @property
    def keys(self) -> int:
        """The number of keys of each."""
        return self.key_tokens_EK.shape[1]

    def hidden(self, visibility: Visibility, device: torch.device) -> Tensor | None:
        """(E, 1, S, K) bool: keys that a query does not see; None where it sees all of its example."""
        if visibility.full:
            return None
        rows = ((self.positions_ES, self.tokens_ES), (self.key_positions_EK, self.key_tokens_EK))
        queries, keys = (Places(*(to_device(x, device) for x in places)) for places in rows)
        return ~visible(visibility, queries, keys)


class Layout(NamedTuple):
    """Maps from packed rows (token, head) to the rows of the tiles and back."""

    heads: int
    sizes: tuple[int, ...]
    """Rows of each tile."""
    gather: Tensor
    """int64: the packed row that each tile row copies; padding repeats its example's last token."""
    scatter: Tensor | None
    """int64: the tile row of each packed row; None where some are in several tiles."""
    packed: int
    """Number of packed rows."""


@dataclass(frozen=True)
class TilePlan:
    """The tiles of a micro-batch, and where the rows of its queries and keys are in them."""

    tiles: tuple[Tile, ...]
    queries: Layout
    keys: Layout  # the same as of the queries where there are as many heads, and no key is in two tiles
    padding: Tensor  # int64: the tile rows of queries that are padding

    @property
    def group(self) -> int:
        """The number of heads of queries that share one of keys."""
        return self.queries.heads // self.keys.heads


def block_length(window: int) -> int:
    """Return the number of queries of a block where a query sees `window` keys on either side: near that number, so
    that a block's matrix products are not small, and a third of the keys that it reads at least are in reach."""
    return max(window, _SMALLEST_BLOCK)


def keys_of_block(window: int) -> int:
    """Return the number of keys of such a block."""
    return block_length(window) + 2 * window


def scores_per_token(max_length: int, window: int) -> int:
    """Return how many attention scores per token and head a plan has at most, for examples of up to `max_length`
    tokens: a block whose last part is padding counts for twice its queries at most."""
    keys = keys_of_block(window)
    return max_length if not window or max_length <= keys else 2 * keys


def plan_tiles(
    lengths: Sequence[int],
    heads: int,
    device: torch.device,
    max_scores: float = math.inf,
    window: int = 0,
    key_heads: int = 0,
) -> TilePlan:
    """Plan the tiles for consecutive examples of `lengths` tokens in a packed run, with at most `max_scores`
    attention scores per head, which must be at least the number without padding. `key_heads`: of keys and values, a
    divisor of `heads`; 0: as many.

    With a `window` of keys that a query sees on either side, examples longer than a block and its keys are cut into
    blocks, so that their cost is their length times the window's."""
    length_of = np.asarray(lengths, np.int64)
    starts = offsets_of(length_of)[:-1]
    is_cut = length_of > keys_of_block(window) if window else np.zeros(len(length_of), bool)
    parts = []
    if is_cut.any():
        parts.append(_blocks(length_of[is_cut], starts[is_cut], window))
        max_scores -= parts[0].tokens.size * keys_of_block(window)
    order = np.argsort(length_of, kind="stable")
    order = order[(length_of[order] > 0) & ~is_cut[order]]  # spare examples have no tokens
    overhead = _TILE_OVERHEAD.get(device.type, _TILE_OVERHEAD["cuda"]) / heads
    cuts = _cut(length_of[order], overhead)
    if sum((last - first) * int(length_of[order[last - 1]]) ** 2 for first, last in cuts) > max_scores:
        cuts = _cut(length_of[order], 0.0)
    parts += [_whole(length_of[order[a:b]], starts[order[a:b]]) for a, b in cuts]
    return _plan(parts, heads, key_heads or heads, device, int(length_of.sum()))


class _Rows(NamedTuple):
    """The rows of one tile: positions in examples, tokens of the packed run, and where they are padding."""

    positions: NDArray[np.int64]
    tokens: NDArray[np.int64]
    is_padding: NDArray[np.bool_]
    key_positions: NDArray[np.int64]
    key_tokens: NDArray[np.int64]

    @property
    def of_whole_examples(self) -> bool:
        return self.key_tokens is self.tokens


def _whole(length_of: NDArray[np.int64], starts: NDArray[np.int64]) -> _Rows:
    """List the rows of a tile of whole examples."""
    columns, last = np.arange(length_of.max())[None, :], length_of[:, None] - 1
    positions = np.minimum(columns, last)
    tokens = starts[:, None] + positions
    return _Rows(positions, tokens, columns > last, positions, tokens)


def _blocks(length_of: NDArray[np.int64], starts: NDArray[np.int64], window: int) -> _Rows:
    """List the rows of the blocks of these examples: each block's queries, and the keys around them."""
    block, keys = block_length(window), keys_of_block(window)
    counts = -(-length_of // block)
    first = (np.arange(counts.sum()) - np.repeat(offsets_of(counts)[:-1], counts)) * block
    length, start = np.repeat(length_of, counts), np.repeat(starts, counts)[:, None]
    columns, last = first[:, None] + np.arange(block), length[:, None] - 1
    positions = np.minimum(columns, last)
    key_positions = np.clip(first - window, 0, length - keys)[:, None] + np.arange(keys)
    return _Rows(positions, start + positions, columns > last, key_positions, start + key_positions)


def _plan(parts: Sequence[_Rows], heads: int, key_heads: int, device: torch.device, tokens: int) -> TilePlan:
    """Map packed rows to those of the tiles."""
    tiles = tuple(
        Tile(
            part.tokens.shape[0],
            part.tokens.shape[1],
            _bias(part.is_padding, device) if part.of_whole_examples else None,
            part.positions,
            part.tokens,
            part.key_positions,
            part.key_tokens,
        )
        for part in parts
    )
    rows, padding = [part.tokens for part in parts], _padding(parts, heads)
    queries = keys = _layout(rows, padding, heads, device, tokens)
    if not all(part.of_whole_examples for part in parts):
        keys = _layout([part.key_tokens for part in parts], None, key_heads, device, tokens)
    elif key_heads != heads:
        keys = _layout(rows, _padding(parts, key_heads), key_heads, device, tokens)
    return TilePlan(tiles, queries, keys, to_device(np.flatnonzero(padding), device))


def _padding(parts: Sequence[_Rows], heads: int) -> NDArray[np.bool_]:
    return np.concatenate([_by_head(part.is_padding, heads, spread=False) for part in parts])


def _layout(
    rows: Sequence[NDArray[np.int64]],
    is_padding: NDArray[np.bool_] | None,
    heads: int,
    device: torch.device,
    tokens: int,
) -> Layout:
    """Map packed rows to tiles that have these tokens in their rows. `is_padding`: of each tile row; None where some
    tokens are in several tiles."""
    gather = np.concatenate([_by_head(part, heads) for part in rows])
    scatter = None
    if is_padding is not None:
        scatter = np.empty(tokens * heads, np.int64)
        scatter[gather[~is_padding]] = np.flatnonzero(~is_padding)
    return Layout(
        heads,
        tuple(part.size * heads for part in rows),
        to_device(gather, device),
        None if scatter is None else to_device(scatter, device),
        tokens * heads,
    )


def _by_head(x_ES: NDArray[Any], heads: int, spread: bool = True) -> NDArray[Any]:
    """Repeat a tile's rows for each head, heads before tokens; tokens (`spread`) become rows of (token, head)."""
    if not spread:
        return np.broadcast_to(x_ES[:, None, :], (len(x_ES), heads, x_ES.shape[1])).ravel()
    return (x_ES[:, None, :] * heads + np.arange(heads)[None, :, None]).ravel()


def _bias(is_padding_ES: NDArray[np.bool_], device: torch.device) -> Tensor | None:
    if not is_padding_ES.any():
        return None
    bias_ES = np.where(is_padding_ES, np.float32(-np.inf), np.float32(0.0))
    return to_device(bias_ES, device)[:, None, None, :]


def _cut(ascending: NDArray[np.int64], overhead: float) -> list[tuple[int, int]]:
    """Cut ascending lengths into runs [first, last) of minimum total cost: per run, its number of examples times
    the square of its longest, plus `overhead`. Exact, by dynamic programming over the distinct lengths."""
    distinct, counts = np.unique(ascending, return_counts=True)
    ends = offsets_of(counts)
    best, cut_before = np.zeros(len(distinct) + 1), np.zeros(len(distinct) + 1, np.int64)
    for j, length in enumerate(distinct, start=1):
        costs = best[:j] + (ends[j] - ends[:j]) * float(length) ** 2 + overhead
        cut_before[j] = int(np.argmin(costs))
        best[j] = costs[cut_before[j]]
    runs, j = [], len(distinct)
    while j > 0:
        runs.append((int(ends[cut_before[j]]), int(ends[j])))
        j = int(cut_before[j])
    return runs[::-1]


# Attention within the tiles. All moves between the packed and the tiled layout are gathers of whole rows in both
# directions: the padding's gradient is zero, so no scatter-add is needed. Only the gradients of keys that several
# blocks of a window have are sums.


def tile_attention(
    q_TND: Tensor,
    k_TMD: Tensor,
    v_TMD: Tensor,
    plan: TilePlan,
    dropout: float,
    visibility: Visibility = FULL,
) -> Tensor:
    """Compute softmax(q k' / sqrt(D)) v within each example, (T, N, D), over the visible keys, 0 without any;
    dropout on the probabilities. Uses torch's kernel per tile, where a GPU has no better backend."""
    size = q_TND.shape[-1]
    q_tiles = _ToTiles.apply(q_TND, plan.queries).split(plan.queries.sizes)
    k_tiles, v_tiles = (_ToTiles.apply(x, plan.keys).split(plan.keys.sizes) for x in (k_TMD, v_TMD))
    out = []
    for tile, *qkv in zip(plan.tiles, q_tiles, k_tiles, v_tiles, strict=True):
        q, k, v = (x.view(tile.examples, plan.keys.heads, -1, size) for x in qkv)
        bias = None if tile.bias_E11S is None else tile.bias_E11S.to(q.dtype)
        unseen = tile.hidden(visibility, q.device)
        if unseen is not None:
            if plan.group > 1:
                unseen = unseen.repeat(1, 1, plan.group, 1)
            # -inf would give NaN, in gradients too, for a query that sees no key
            lowest_E1SS = q.new_zeros(unseen.shape).masked_fill_(unseen, torch.finfo(q.dtype).min)
            bias = lowest_E1SS if bias is None else lowest_E1SS + bias
        dense = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout)
        if visibility.ranked and unseen is not None:
            dense = dense.masked_fill(unseen.all(-1, keepdim=True), 0.0)
        out.append(dense.reshape(-1, size))
    return _FromTiles.apply(torch.cat(out) if len(out) > 1 else out[0], plan)


class _ToTiles(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layout: Layout) -> Tensor:
        ctx.layout = layout
        return to_tiles(x, layout)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return from_tiles(grad, ctx.layout), None


class _FromTiles(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_PD: Tensor, plan: TilePlan) -> Tensor:
        ctx.plan = plan
        return from_tiles(x_PD, plan.queries)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_TND: Tensor) -> tuple[Tensor, None]:
        return to_tiles(grad_TND, ctx.plan.queries).index_fill_(0, ctx.plan.padding, 0.0), None


def to_tiles(x: Tensor, layout: Layout) -> Tensor:
    """Gather the rows of all tiles, (rows, D), from packed ones, (T, heads, D); padding repeats its example's last
    token."""
    return x.reshape(-1, x.shape[-1]).index_select(0, layout.gather)


def from_tiles(x: Tensor, layout: Layout) -> Tensor:
    """Gather packed rows, (T, heads, D), from those of all tiles, (rows, D). Those in several tiles are summed, as the
    gradients of keys are; padded keys and those that no query sees have 0."""
    if layout.scatter is None:
        packed = x.new_zeros(layout.packed, x.shape[-1]).index_add_(0, layout.gather, x)
    else:
        packed = x.index_select(0, layout.scatter)
    return packed.view(-1, layout.heads, x.shape[-1])
