"""Compute where the examples of a split are: map example numbers to rows of blocks of shards.

Order defines the numbering. Integers only; no file is opened here.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Run(NamedTuple):
    """Rows first..first+rows-1 of a block of a shard."""

    shard: int
    block: int
    first: int
    rows: int


class Layout:
    """Maps example numbers of a split to rows of blocks. `sequential`: numbered as in a sequential order."""

    def __init__(self, shard_examples: NDArray[np.int64], block: int, sequential: bool = False) -> None:
        self.block, self.sequential = block, sequential
        self._ends = np.cumsum(shard_examples)
        self._full = shard_examples // block  # full blocks of each shard
        self._full_ends = np.cumsum(self._full)
        self._rest_ends = np.cumsum(shard_examples % block)
        self._in_full = int(self._full_ends[-1]) * block if len(shard_examples) else 0

    def runs(self, first: int, count: int) -> Iterator[Run]:
        """Yield the rows that hold examples first..first+count-1, in order."""
        while count:
            run = self._run(first, count)
            yield run
            first, count = first + run.rows, count - run.rows

    def _run(self, first: int, count: int) -> Run:
        if self.sequential:
            return self._in_place(first, count)
        return self._in_full_block(first, count) if first < self._in_full else self._in_rest(first, count)

    def _in_place(self, first: int, count: int) -> Run:
        shard = int(np.searchsorted(self._ends, first, "right"))
        block, row = divmod(first - (int(self._ends[shard - 1]) if shard else 0), self.block)
        return Run(shard, block, row, min(count, self.block - row, int(self._ends[shard]) - first))

    def _in_full_block(self, first: int, count: int) -> Run:
        block, row = divmod(first, self.block)
        shard = int(np.searchsorted(self._full_ends, block, "right"))
        before = int(self._full_ends[shard - 1]) if shard else 0
        return Run(shard, block - before, row, min(count, self.block - row))

    def _in_rest(self, first: int, count: int) -> Run:
        number = first - self._in_full
        shard = int(np.searchsorted(self._rest_ends, number, "right"))
        row = number - (int(self._rest_ends[shard - 1]) if shard else 0)
        left = int(self._rest_ends[shard]) - number
        return Run(shard, int(self._full[shard]), row, min(count, left))
