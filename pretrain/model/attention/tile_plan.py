"""Plan the dense tiles of a micro-batch: which rows of the packed run are in which tile.

The examples of a micro-batch are sorted by length and cut into tiles; each is a dense (examples, heads, length,
size) block, padded to its longest example. The plan depends on the lengths alone, so it is made once per
micro-batch and used in every layer, forward and backward.

Where tokens see a window, long examples are cut into blocks of queries with the keys around them, which are in up to
three blocks.

Shape legend: T packed tokens, N heads, P rows of all tiles (sum of E*N*S), E examples or blocks of a tile, S queries
and K keys of each.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data_pipeline.io.npy import offsets_of
from pretrain.model.copies import to_device
from pretrain.model.visibility import Places, Visibility, visible

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


@dataclass(frozen=True)
class TilePlan:
    """Maps from packed rows (token, head) to tile rows and back."""

    heads: int
    tiles: tuple[Tile, ...]
    gather_P: Tensor  # int64: the row of (T * N) that each tile row copies; padding repeats its example's last token
    keys_P: Tensor  # int64: the same of the tiles' keys; the same tensor where no key is in two tiles
    scatter_TN: Tensor  # int64: the tile row of each packed row
    padding: Tensor  # int64: the tile rows of queries that are padding

    @property
    def sizes(self) -> list[int]:
        """Return the number of rows of each tile."""
        return [tile.examples * self.heads * tile.length for tile in self.tiles]

    @property
    def key_sizes(self) -> list[int]:
        """Return the number of rows of each tile's keys."""
        return [tile.examples * self.heads * tile.keys for tile in self.tiles]


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
    lengths: Sequence[int], heads: int, device: torch.device, max_scores: float = math.inf, window: int = 0
) -> TilePlan:
    """Plan the tiles for consecutive examples of `lengths` tokens in a packed run, with at most `max_scores`
    attention scores per head, which must be at least the number without padding.

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
    return _plan(parts, heads, device, int(length_of.sum()))


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


def _plan(parts: Sequence[_Rows], heads: int, device: torch.device, tokens: int) -> TilePlan:
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
    gather_P = np.concatenate([_by_head(part.tokens, heads) for part in parts])
    is_padding_P = np.concatenate([_by_head(part.is_padding, heads, spread=False) for part in parts])
    scatter_TN = np.empty(tokens * heads, np.int64)
    scatter_TN[gather_P[~is_padding_P]] = np.flatnonzero(~is_padding_P)
    gathered, scattered, padding = (
        to_device(index, device) for index in (gather_P, scatter_TN, np.flatnonzero(is_padding_P))
    )
    keys_P = gathered
    if not all(part.of_whole_examples for part in parts):
        rows = np.concatenate([_by_head(part.key_tokens, heads) for part in parts])
        keys_P = to_device(rows, device)
    return TilePlan(heads, tiles, gathered, keys_P, scattered, padding)


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
