"""Compute which rank reads which example when, as pure functions of integers.

No file is opened here, and no table grows with the data.

The N examples of a split are numbered: first those of all full blocks, shard after shard, then those of the shards'
last, shorter blocks, also in shard order. Every `block` numbers form a virtual block; all are full except the last, if
N is not a multiple.

    epoch     the virtual blocks in the order of a permutation keyed by (seed, epoch); a short one stays last
    streams   K readers. Item n of stream k is number g = n K + k of the whole sequence and belongs to epoch g // N:
              the first N numbers are exactly epoch 0, the next N epoch 1, for any K and N. A stream's items of an
              epoch are contiguous in the epoch, so that it reads whole blocks
    windows   every `window` virtual blocks of an epoch, cut at the streams' borders, are shuffled by a permutation
              keyed by (seed, epoch, place)
    steps     step t takes items t b .. (t + 1) b - 1 of every stream, b = B / K; its B examples are numbered
              stream by stream, and rank r of W has numbers r B // W .. (r + 1) B // W - 1. In a ramp b grows with t
              (batch_sizes.py): a step takes the next b(t) items, and the rest is as without a ramp

So a global batch is the same set of examples at every W, and any step is found without walking to it.

A sequential order permutes nothing and numbers the examples in shard order, each shard's last block included. A
stream's items of an epoch are then a contiguous range of the split, in order; the last example of the range is
followed by its first one in the next epoch. By default every row of the global batch is a stream (K = B), so that
the next part of a document comes next in the same row, as memory across steps needs. In both directions, streams of odd
number read their ranges from the last example to the first.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_pipeline import rng
from data_pipeline.errors import UserError
from data_pipeline.jit import jit, multiply_high
from data_pipeline.loader.batch_sizes import BatchSizes
from data_pipeline.rng import BLOCK_ORDER, WINDOW_ORDER, finalize

WINDOW_BLOCKS = 256
"""Blocks in all streams' windows together, unless there are more streams than that."""

_ROUNDS = 96


class StreamRanges(NamedTuple):
    """Items first[i]..last[i]-1 of stream streams[i], for every i."""

    streams: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]


class Window(NamedTuple):
    """A part of a stream's items that is shuffled together: items first..first+items-1 of the stream are positions
    start..start+items-1 of the epoch, shuffled, or in order, or `backwards`."""

    epoch: int
    first: int
    start: int
    items: int
    backwards: bool = False


def rank_range(global_batch: int, rank: int, world: int) -> tuple[int, int]:
    """Return the range (first, last + 1) of the numbers 0..global_batch-1 that this rank reads. Raises UserError for
    more ranks than examples."""
    if world > global_batch:
        raise UserError(
            f"{world} ranks for a global batch of {global_batch}",
            where="train.global_batch",
            expected="at least an example for every rank",
            remedy="raise it, or start fewer ranks",
        )
    return rank * global_batch // world, (rank + 1) * global_batch // world


@dataclass(frozen=True)
class Order:
    """The order of the examples of one split over all epochs."""

    examples: int
    """N, examples in the split."""
    block: int
    """Examples in a full block."""
    seed: int
    global_batch: int
    """B, examples in a step."""
    streams: int
    """K, a divisor of B."""
    window: int
    """Virtual blocks that are shuffled together; in a sequential order, read together."""
    sequential: bool = False
    """Each stream reads its range of the split in order."""
    ramp_from: int = 0
    """Examples in the first step, if the batch grows; a multiple of K."""
    ramp_batches: int = 0
    """Steps until the batch has its full size; 0: it has it from the first on."""
    both_directions: bool = False
    """Streams of odd number read their ranges backwards."""

    def __post_init__(self) -> None:
        if self.examples < 1:
            raise UserError(
                "no examples", where="shards", expected="at least one", remedy="prepare more text"
            )
        for size in (self.global_batch, self.ramp_from):
            if self.streams < 1 or size % self.streams:
                raise UserError(
                    f"{self.streams} streams do not divide the global batch of {size}",
                    where="data.streams",
                    expected="a divisor of train.global_batch, and of train.batch_ramp_from",
                    remedy="data.streams=0 chooses one",
                )
        if self.both_directions and (self.streams % 2 or not self.sequential):
            order = "sequential" if self.sequential else "shuffled"
            raise UserError(
                f"data.both_directions=true with {self.streams} streams in {order} order",
                where="settings",
                expected="as many streams forwards as backwards, each through its documents in order",
                remedy="data.order=sequential, and an even train.global_batch or data.streams",
            )
        if self.ramp_batches and not 0 < self.ramp_from <= self.global_batch:
            raise UserError(
                f"a ramp from {self.ramp_from} to {self.global_batch} examples",
                where="train.batch_ramp_from",
                expected="at least one example, and at most train.global_batch",
            )

    @classmethod
    def of(
        cls,
        examples: int,
        block: int,
        seed: int,
        global_batch: int,
        streams: int = 0,
        sequential: bool = False,
        ramp_from: int = 0,
        ramp_batches: int = 0,
        both_directions: bool = False,
    ) -> "Order":
        """Build the order with the default number of streams (if `streams` is 0) and the default window."""
        streams = BatchSizes.of(global_batch, streams, ramp_from, ramp_batches, sequential).streams
        window = max(1, WINDOW_BLOCKS // streams)
        ramp = (ramp_from, ramp_batches)
        return cls(examples, block, seed, global_batch, streams, window, sequential, *ramp, both_directions)

    @property
    def sizes(self) -> BatchSizes:
        """How many examples each step has."""
        return BatchSizes(self.global_batch, self.streams, self.ramp_from, self.ramp_batches)

    @property
    def items(self) -> int:
        """b, the examples that a step of full size takes from each stream."""
        return self.global_batch // self.streams

    def window_at(self, stream: int, item: int) -> Window:
        """Return the window that contains item number `item` of a stream."""
        total, streams = self.examples, self.streams
        epoch = (item * streams + stream) // total
        first_item = -(-(epoch * total - stream) // streams)  # numbers g < epoch N of this stream: ceil
        after_item = -(-((epoch + 1) * total - stream) // streams)
        stream_start = self._before(stream, (epoch + 1) * total) - self._before(stream, epoch * total)
        stream_stop = stream_start + after_item - first_item
        backwards = self.both_directions and stream % 2 == 1
        position = stream_stop - 1 - item + first_item if backwards else stream_start + item - first_item
        size = self.window * self.block
        start = max(stream_start, position // size * size)
        stop = min(stream_stop, (position // size + 1) * size)
        before = stream_stop - stop if backwards else start - stream_start
        return Window(epoch, first_item + before, start, stop - start, backwards)

    def window_numbers(self, window: Window) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (numbers, places), each of `window.items`: the examples in the epoch's order, which a reader finds
        block by block, and for each its place among the window's items."""
        starts, counts = zip(*self.window_blocks(window), strict=True)
        numbers = np.concatenate([np.arange(s, s + c) for s, c in zip(starts, counts, strict=True)])
        if self.sequential:
            places = np.arange(window.items)
            return numbers, places[::-1] if window.backwards else places
        key = (window.epoch * self.examples + window.start) % 2**64
        return numbers, rng.permutation(self.seed % 2**64, key, WINDOW_ORDER, window.items)

    def window_blocks(self, window: Window) -> Iterator[tuple[int, int]]:
        """Yield (first number, count) of the window's examples in each virtual block, in the epoch's order."""
        position, end = window.start, window.start + window.items
        while position < end:
            place, offset = divmod(position, self.block)
            count = min(self.block - offset, end - position)
            yield self.virtual_block(window.epoch, place) * self.block + offset, count
            position += count

    def virtual_block(self, epoch: int, place: int) -> int:
        """Return the virtual block at a place of an epoch."""
        full = self.examples // self.block
        if self.sequential or place >= full:
            return place  # the short block stays last, so that positions can be computed
        return permuted(place, full, _round_keys(self.seed, epoch))

    def stream_ranges(self, step: int, rank: int, world: int) -> StreamRanges:
        """Return what a rank reads in a step, stream by stream. Raises UserError for more ranks than examples."""
        sizes = self.sizes
        start, stop = rank_range(sizes.at(step), rank, world)
        items, first = sizes.at(step) // self.streams, sizes.before(step) // self.streams
        streams = np.arange(start // items, (stop - 1) // items + 1)
        low = np.maximum(start - streams * items, 0)
        high = np.minimum(stop - streams * items, items)
        return StreamRanges(streams, first + low, first + high)

    def streams_of(self, rank: int, world: int) -> tuple[int, int]:
        """Return the first and the last stream that a rank reads in a step of full size. In the smaller steps of a
        ramp it starts with the same one, floor(rank K / world), and ends there or earlier."""
        start, stop = rank_range(self.global_batch, rank, world)
        return start // self.items, (stop - 1) // self.items

    def _before(self, stream: int, number: int) -> int:
        """Count the numbers below `number` that belong to streams before `stream`."""
        rounds, rest = divmod(number, self.streams)
        return rounds * stream + min(stream, rest)


def permuted(x: int, n: int, keys: NDArray[np.uint64]) -> int:
    """Return where a keyed permutation of 0..n-1 puts x, without a table.

    The swap-or-not shuffle (Hoang, Morris and Rogaway 2012, "An enciphering scheme based on a card shuffle") works
    for any n. In each round x and its mirror image are swapped if a hash of the pair says so; `keys` holds two words
    per round."""
    return int(_permuted(np.uint64(x), np.uint64(n), keys))


@jit
def _permuted(x, n, keys):
    for i in range(0, len(keys), 2):
        pivot = multiply_high(keys[i], n)
        partner = pivot - x if pivot >= x else pivot + (n - x)
        if finalize(max(x, partner) + keys[i + 1]) >> np.uint64(63):
            x = partner
    return x


@lru_cache(maxsize=64)
def _round_keys(seed: int, epoch: int) -> NDArray[np.uint64]:
    return rng.words(seed % 2**64, epoch, BLOCK_ORDER, 2 * _ROUNDS)
