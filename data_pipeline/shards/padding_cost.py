"""Compute the tokens that padded, binned or packed batches cost a reader, from lengths in reading order."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_pipeline.jit import allocating, jit


class Padding(NamedTuple):
    """Tokens that a model would compute for the same examples, batched in three ways."""

    padded: int
    """Each batch padded to its longest example."""
    binned: int
    """The same, each batch of examples of one length bin."""
    packed: int
    """Each batch packed by first fit into rows of the sequence length, every row counted as full."""


class PaddingCounter:
    """Adds up Padding over lengths that arrive in parts; batches continue across parts."""

    def __init__(self, batch: int, bin_width: int, sequence_length: int) -> None:
        self.batch, self.bin_width, self.sequence_length = batch, bin_width, sequence_length
        bins = -(-sequence_length // bin_width)
        self._open = np.zeros(
            (bins + 1, 2), np.int64
        )  # (examples, longest) of each bin's batch; last: any length
        self._done = np.zeros(2, np.int64)
        self._left, self._rows = np.zeros(0, np.int64), 0

    def add(self, lengths: NDArray[np.int64]) -> None:
        """Add the next examples' lengths, each from 1 to the sequence length."""
        _pad(lengths, self.batch, self.bin_width, self._open, self._done)
        waiting = np.concatenate([self._left, lengths])
        whole = len(waiting) // self.batch * self.batch
        self._rows += packed_rows(waiting[:whole], self.batch, self.sequence_length)
        self._left = waiting[whole:]

    def result(self) -> Padding:
        """Return the sums so far, including batches that are not full."""
        open_ones = self._open[:, 0] * self._open[:, 1]
        rows = self._rows + packed_rows(self._left, self.batch, self.sequence_length)
        return Padding(
            padded=int(self._done[0] + open_ones[-1]),
            binned=int(self._done[1] + open_ones[:-1].sum()),
            packed=rows * self.sequence_length,
        )


def padded_tokens(lengths: NDArray[np.int64], batch: int) -> int:
    """Count the tokens of all batches of `batch` examples, each padded to its longest one."""
    if not len(lengths):
        return 0
    starts = np.arange(0, len(lengths), batch)
    counts = np.diff(np.append(starts, len(lengths)))
    return int((np.maximum.reduceat(lengths, starts) * counts).sum())


def packed_rows(lengths: NDArray[np.int64], batch: int, room: int) -> int:
    """Count the rows of `room` tokens that the examples of each batch of `batch` fill, packed by first fit: each
    goes into the first row of its batch that has room for it."""
    return int(_first_fit(np.ascontiguousarray(lengths), batch, room))


@jit
def _pad(lengths, batch, bin_width, open_ones, done):
    mixed = len(open_ones) - 1
    for length in lengths:
        for way, place in enumerate((mixed, (length - 1) // bin_width)):
            open_ones[place, 0] += 1
            open_ones[place, 1] = max(open_ones[place, 1], length)
            if open_ones[place, 0] == batch:
                done[way] += batch * open_ones[place, 1]
                open_ones[place, 0] = open_ones[place, 1] = 0


@allocating
def _first_fit(lengths, batch, room):
    """Find the first row with room in log2(batch) steps: a tree over the rows, each node with the maximum room below
    it."""
    leaves = 1
    while leaves < min(batch, len(lengths)):
        leaves *= 2
    tree = np.empty(2 * leaves, np.int64)
    rows = 0
    for first in range(0, len(lengths), batch):
        tree[:] = room
        used = -1
        for i in range(first, min(first + batch, len(lengths))):
            node = 1
            while node < leaves:
                node *= 2
                if tree[node] < lengths[i]:
                    node += 1
            used = max(used, node - leaves)
            tree[node] -= lengths[i]
            while node > 1:
                node //= 2
                tree[node] = max(tree[2 * node], tree[2 * node + 1])
        rows += used + 1
    return rows
