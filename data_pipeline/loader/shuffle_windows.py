"""Shuffle the examples of blocks within windows: those of a rank's streams, in one arena of flat columns.

A stream has one slot. When it walks out of its window the slot is filled anew: the window's blocks are read, all
waiting streams' together, and their examples are written in shuffled order, so that a step takes runs of
neighbours. Memory: streams x window x block examples in their types on disk (some 250 bytes each at 128
tokens), and the blocks of the window being filled.
"""

import numpy as np
from numpy.typing import NDArray

from data_pipeline.compiled.jit import allocating, jit
from data_pipeline.io.npy import offsets_of
from data_pipeline.loader.order import Order, StreamRanges, Window
from data_pipeline.records import Examples, concatenate
from data_pipeline.shards.block import COLUMNS
from data_pipeline.shards.placement import Layout, Run
from data_pipeline.shards.writer import BlockReader

SLACK = 1.05
"""Room in a slot beyond what is expected of, or was needed by, the fullest window."""


class Windows:
    """The windows of streams first_stream..last_stream (the last included), each where it was last asked for."""

    def __init__(self, reader: BlockReader, order: Order, first_stream: int, last_stream: int) -> None:
        slots = last_stream - first_stream + 1
        items = min(order.window * order.block, order.examples)
        split = reader.split
        self.reader, self.order, self.first_stream = reader, order, first_stream
        self.layout = Layout(split.shard_examples, order.block, order.sequential)
        self._first, self._stop, self._epoch = np.zeros((3, slots), np.int64)  # items of each slot's window
        self._numbers = np.zeros((slots, items), np.int64)
        self._offsets, self._masked_offsets = np.zeros((2, slots, items + 1), np.int64)
        self._first_lengths = np.zeros((slots, items), np.uint16)
        self._labels = np.zeros((slots, items), np.int8)
        self._ids = np.dtype(np.uint16 if reader.index.vocabulary.size <= 2**16 else np.uint32)
        self._tokens, self._masked_ids = np.zeros((2, slots, 0), self._ids)
        self._positions = np.zeros((slots, 0), np.uint16)
        self._reserve(items * split.tokens // split.examples, items * split.masked // split.examples)

    @property
    def bytes(self) -> int:
        """Memory of the open windows."""
        return self._numbers.nbytes + sum(column.nbytes for column in self._arena)

    def take(self, ranges: StreamRanges) -> tuple[Examples, NDArray[np.int64], NDArray[np.int64]]:
        """The items of all ranges, stream by stream, with their epochs and their numbers in the split."""
        slots, first, last = ranges.streams - self.first_stream, ranges.first, ranges.last
        places = offsets_of(last - first)[:-1]
        parts, epochs, numbers, where = [], [], [], []
        while len(slots):  # once round, unless a step is so large that it walks through a window's end
            self._open(slots, first)
            counts = np.minimum(last, self._stop[slots]) - first
            rows = first - self._first[slots]
            columns = _collect(slots, rows, counts, self._arena)
            parts.append(Examples(**dict(zip(COLUMNS, columns, strict=True))))
            epochs.append(np.repeat(self._epoch[slots], counts))
            numbers.append(_expand(counts, rows, slots, self._numbers))
            where.append(np.repeat(places, counts) + _counted(counts))
            first, places = first + counts, places + counts
            more = first < last
            slots, first, last, places = slots[more], first[more], last[more], places[more]
        if len(parts) == 1:
            return parts[0], epochs[0], numbers[0]
        back = np.argsort(np.concatenate(where))
        return concatenate(parts).take(back), np.concatenate(epochs)[back], np.concatenate(numbers)[back]

    @property
    def _arena(self) -> tuple[NDArray, ...]:
        """The columns, in the order of COLUMNS, a row a slot."""
        return (
            self._tokens,
            self._offsets,
            self._first_lengths,
            self._labels,
            self._positions,
            self._masked_ids,
            self._masked_offsets,
        )

    def _open(self, slots: NDArray[np.int64], items: NDArray[np.int64]) -> None:
        """Fills every slot whose window does not hold its item."""
        closed = (items < self._first[slots]) | (items >= self._stop[slots])
        tasks: list[tuple[int, Window, NDArray[np.int64], list[Run]]] = []
        for slot, item in zip(slots[closed].tolist(), items[closed].tolist(), strict=True):
            window = self.order.window_at(slot + self.first_stream, item)
            numbers, places = self.order.window_numbers(window)
            self._numbers[slot, places] = numbers
            spans = self.order.window_blocks(window)
            tasks.append((slot, window, places, [run for span in spans for run in self.layout.runs(*span)]))
        blocks = self.reader.read([(run.shard, run.block) for *_, runs in tasks for run in runs])
        for slot, window, places, runs in tasks:
            self._fill(slot, places, [(run, next(blocks)) for run in runs])
            self._first[slot], self._stop[slot] = window.first, window.first + window.items
            self._epoch[slot] = window.epoch

    def _fill(self, slot: int, places: NDArray[np.int64], parts: list[tuple[Run, Examples]]) -> None:
        """Writes the rows of `parts`, of which the n-th goes to place places[n] of the window."""
        lengths, masked = np.empty((2, len(places)), np.int64)
        bounds = offsets_of([run.rows for run, _ in parts])
        for (run, block), start, stop in zip(parts, bounds[:-1], bounds[1:], strict=True):
            rows = slice(run.first, run.first + run.rows)
            lengths[places[start:stop]] = block.lengths[rows]
            masked[places[start:stop]] = np.diff(block.masked_offsets)[rows]
        self._reserve(int(lengths.sum()), int(masked.sum()))
        np.cumsum(lengths, out=self._offsets[slot, 1 : len(places) + 1])
        np.cumsum(masked, out=self._masked_offsets[slot, 1 : len(places) + 1])
        for (run, block), start, stop in zip(parts, bounds[:-1], bounds[1:], strict=True):
            columns = tuple(getattr(block, name) for name in COLUMNS)
            _scatter(columns, run.first, places[start:stop], slot, self._arena)

    def _reserve(self, tokens: int, masked: int) -> None:
        """Makes room for so many tokens and masked positions in every slot."""
        if tokens > self._tokens.shape[1]:
            self._tokens = _widened(self._tokens, int(tokens * SLACK))
        if masked > self._positions.shape[1]:
            self._positions = _widened(self._positions, int(masked * SLACK))
            self._masked_ids = _widened(self._masked_ids, int(masked * SLACK))


def _widened(column: NDArray, width: int) -> NDArray:
    wide = np.zeros((len(column), width), column.dtype)
    wide[:, : column.shape[1]] = column
    return wide


def _counted(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """0..counts[0]-1, 0..counts[1]-1, ..."""
    ends = np.cumsum(counts)
    return np.arange(ends[-1]) - np.repeat(ends - counts, counts)


def _expand(
    counts: NDArray[np.int64], rows: NDArray[np.int64], slots: NDArray[np.int64], numbers: NDArray[np.int64]
) -> NDArray[np.int64]:
    return numbers[np.repeat(slots, counts), np.repeat(rows, counts) + _counted(counts)]


@jit
def _scatter(columns, first, places, slot, arena):
    """Writes rows first.. of a block to the places of a slot whose offsets are set."""
    tokens, offsets, first_lengths, labels, positions, ids, masked_offsets = columns
    to_tokens, to_offsets, to_first, to_labels, to_positions, to_ids, to_masked = arena
    for n in range(len(places)):
        place, row = places[n], first + n
        to_first[slot, place] = first_lengths[row]
        to_labels[slot, place] = labels[row]
        to, source = to_offsets[slot, place], offsets[row]
        for i in range(offsets[row + 1] - source):
            to_tokens[slot, to + i] = tokens[source + i]
        to, source = to_masked[slot, place], masked_offsets[row]
        for i in range(masked_offsets[row + 1] - source):
            to_positions[slot, to + i] = positions[source + i]
            to_ids[slot, to + i] = ids[source + i]


@allocating
def _collect(slots, rows, counts, arena):
    """The columns of Examples for rows rows[s]..rows[s]+counts[s]-1 of each slot in `slots`."""
    from_tokens, from_offsets, from_first, from_labels, from_positions, from_ids, from_masked = arena
    tokens_total, masked_total = 0, 0
    for s in range(len(slots)):
        slot, row, stop = slots[s], rows[s], rows[s] + counts[s]
        tokens_total += from_offsets[slot, stop] - from_offsets[slot, row]
        masked_total += from_masked[slot, stop] - from_masked[slot, row]
    total = counts.sum()
    tokens = np.empty(tokens_total, from_tokens.dtype)
    offsets = np.zeros(total + 1, np.int64)
    first_lengths = np.empty(total, np.uint16)
    labels = np.empty(total, np.int8)
    positions = np.empty(masked_total, np.uint16)
    ids = np.empty(masked_total, from_ids.dtype)
    masked_offsets = np.zeros(total + 1, np.int64)
    n = 0
    for s in range(len(slots)):
        slot, row, stop = slots[s], rows[s], rows[s] + counts[s]
        shift, masked_shift = offsets[n], masked_offsets[n]
        source, masked_source = from_offsets[slot, row], from_masked[slot, row]
        for i in range(from_offsets[slot, stop] - source):
            tokens[shift + i] = from_tokens[slot, source + i]
        for i in range(from_masked[slot, stop] - masked_source):
            positions[masked_shift + i] = from_positions[slot, masked_source + i]
            ids[masked_shift + i] = from_ids[slot, masked_source + i]
        for r in range(row, stop):
            first_lengths[n] = from_first[slot, r]
            labels[n] = from_labels[slot, r]
            offsets[n + 1] = shift + from_offsets[slot, r + 1] - source
            masked_offsets[n + 1] = masked_shift + from_masked[slot, r + 1] - masked_source
            n += 1
    return tokens, offsets, first_lengths, labels, positions, ids, masked_offsets
