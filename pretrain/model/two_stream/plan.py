"""Plan the attention of two streams over a packed micro-batch: tiles, what is seen in them, what is remembered.

An example is [CLS] first in the shards and [CLS] last in XLNet (zihangdai/xlnet, data_utils.py): its tiles list its
first row last, and nothing is moved in the packed run. The memory comes before the example. With `backwards` it is of
the text after the example: such an example's tiles list all its rows from the last to the first, so that the memory
still comes before them, and its distances have the other sign.

Shape legend: T packed tokens, R target rows, E examples, S length of a tile, M length of the memory, K keys (M + S),
H hidden size.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from data_pipeline.io.npy import offsets_of
from pretrain.config.settings import CLS_SEGMENT
from pretrain.model.attention.tile_plan import Tile
from pretrain.model.batch import MicroBatch
from pretrain.model.copies import to_device


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
