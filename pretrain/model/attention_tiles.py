"""Attend densely over tiles of examples of near-equal lengths.

The examples of a micro-batch are sorted by length and cut into tiles; each is a dense (examples, heads, length,
size) block, padded to its longest example. The plan depends on the lengths alone, so it is made once per
micro-batch and used in every layer, forward and backward. All moves between the packed and the tiled layout are
gathers of whole rows in both directions: the padding's gradient is zero, so no scatter-add is needed.

Shape legend: T packed tokens, N heads, D size of a head, P rows of all tiles (sum of E*N*S),
E examples of a tile, S length of a tile.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from data_pipeline.io.npy import offsets_of
from pretrain.model.visibility import FULL, Visibility, visible

# Cost of one more tile, in attention scores: about 30 kernel launches against one exponential and
# four multiply-adds per score. A GPU computes scores a thousand times faster but launches kernels no faster.
_TILE_OVERHEAD = {"cpu": 6_000, "cuda": 4_000_000}


@dataclass(frozen=True)
class Tile:
    """One dense block of examples."""

    examples: int
    length: int
    bias_E11S: Tensor | None  # float32: 0 at tokens, -inf at padding; None where there is no padding
    positions_ES: NDArray[
        np.int64
    ]  # place of each row in its example; padding has its example's last token's
    tokens_ES: NDArray[np.int64]  # the same in the packed run

    def hidden(self, visibility: Visibility, device: torch.device) -> Tensor | None:
        """(E, 1, S, S) bool: keys that a query does not see; None where it sees all of its example."""
        if visibility.full:
            return None
        places = (torch.from_numpy(x).to(device) for x in (self.positions_ES, self.tokens_ES))
        return ~visible(visibility, *places)


@dataclass(frozen=True)
class TilePlan:
    """Maps from packed rows (token, head) to tile rows and back."""

    heads: int
    tiles: tuple[Tile, ...]
    gather_P: Tensor  # int64: the row of (T * N) that each tile row copies; padding repeats its example's last token
    scatter_TN: Tensor  # int64: the tile row of each packed row
    padding: Tensor  # int64: the tile rows that are padding

    @property
    def sizes(self) -> list[int]:
        """Return the number of rows of each tile."""
        return [tile.examples * self.heads * tile.length for tile in self.tiles]


def plan_tiles(
    lengths: Sequence[int], heads: int, device: torch.device, max_scores: float = math.inf
) -> TilePlan:
    """Plan the tiles for consecutive examples of `lengths` tokens in a packed run, with at most `max_scores`
    attention scores per head, which must be at least the number without padding."""
    length_of = np.asarray(lengths, np.int64)
    starts = offsets_of(length_of)[:-1]
    order = np.argsort(length_of, kind="stable")[
        np.count_nonzero(length_of == 0) :
    ]  # spare examples have no tokens
    overhead = _TILE_OVERHEAD.get(device.type, _TILE_OVERHEAD["cuda"]) / heads
    tiles, gather, padded = [], [], []
    cuts = _cut(length_of[order], overhead)
    if sum((last - first) * int(length_of[order[last - 1]]) ** 2 for first, last in cuts) > max_scores:
        cuts = _cut(length_of[order], 0.0)
    for first, last in cuts:
        members = order[first:last]
        width = int(length_of[members].max())
        columns = np.arange(width)
        is_padding = columns[None, :] >= length_of[members, None]
        token = starts[members, None] + np.minimum(columns[None, :], length_of[members, None] - 1)
        rows = token[:, None, :] * heads + np.arange(heads)[None, :, None]
        gather.append(rows.ravel())
        padded.append(np.broadcast_to(is_padding[:, None, :], rows.shape).ravel())
        positions = token - starts[members, None]
        tiles.append(Tile(len(members), width, _bias(is_padding, device), positions, token))
    gather_P, is_padding_P = np.concatenate(gather), np.concatenate(padded)
    scatter_TN = np.empty(int(length_of.sum()) * heads, np.int64)
    scatter_TN[gather_P[~is_padding_P]] = np.flatnonzero(~is_padding_P)
    gathered, scattered, padding = (
        torch.from_numpy(index).to(device) for index in (gather_P, scatter_TN, np.flatnonzero(is_padding_P))
    )
    return TilePlan(heads, tuple(tiles), gathered, scattered, padding)


def _bias(is_padding_ES: NDArray[np.bool_], device: torch.device) -> Tensor | None:
    if not is_padding_ES.any():
        return None
    bias_ES = np.where(is_padding_ES, np.float32(-np.inf), np.float32(0.0))
    return torch.from_numpy(bias_ES)[:, None, None, :].to(device)


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


def tile_attention(
    q_TND: Tensor,
    k_TND: Tensor,
    v_TND: Tensor,
    plan: TilePlan,
    dropout: float,
    visibility: Visibility = FULL,
) -> Tensor:
    """Compute softmax(q k' / sqrt(D)) v within each example, (T, N, D), over the visible keys, 0 without any;
    dropout on the probabilities. Uses torch's kernel per tile, where a GPU has no better backend."""
    size = q_TND.shape[-1]
    q_tiles, k_tiles, v_tiles = (_ToTiles.apply(x, plan).split(plan.sizes) for x in (q_TND, k_TND, v_TND))
    out = []
    for tile, *qkv in zip(plan.tiles, q_tiles, k_tiles, v_tiles, strict=True):
        q, k, v = (x.view(tile.examples, plan.heads, tile.length, size) for x in qkv)
        bias = None if tile.bias_E11S is None else tile.bias_E11S.to(q.dtype)
        unseen = tile.hidden(visibility, q.device)
        if unseen is not None:
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
    def forward(ctx: Any, x_TND: Tensor, plan: TilePlan) -> Tensor:
        ctx.plan, ctx.shape = plan, x_TND.shape
        return to_tiles(x_TND, plan)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_PD: Tensor) -> tuple[Tensor, None]:
        return from_tiles(grad_PD, ctx.plan), None


class _FromTiles(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_PD: Tensor, plan: TilePlan) -> Tensor:
        ctx.plan = plan
        return from_tiles(x_PD, plan)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_TND: Tensor) -> tuple[Tensor, None]:
        return to_tiles(grad_TND, ctx.plan).index_fill_(0, ctx.plan.padding, 0.0), None


def to_tiles(x_TND: Tensor, plan: TilePlan) -> Tensor:
    """Gather the rows of all tiles, (P, D); padding repeats its example's last token."""
    return x_TND.reshape(-1, x_TND.shape[-1]).index_select(0, plan.gather_P)


def from_tiles(x_PD: Tensor, plan: TilePlan) -> Tensor:
    """Gather the rows of tokens, (T, N, D), from those of all tiles."""
    return x_PD.index_select(0, plan.scatter_TN).view(-1, plan.heads, x_PD.shape[-1])
