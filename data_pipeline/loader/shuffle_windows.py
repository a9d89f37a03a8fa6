"""Shuffle the examples of a rank's streams within windows of blocks, in one arena of flat columns.

Each stream has one slot. When it leaves its window, the slot is refilled: the window's blocks are read, together
with those of all waiting streams, and their examples are written in shuffled order, so that a step takes runs of
neighbours. Memory: streams x window x block examples in their types on disk (some 250 bytes each at 128 tokens), and
the blocks of the window being filled.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.io.npy import offsets_of
from data_pipeline.jit import copy_run, jit, read_only
from data_pipeline.loader.order import Order, StreamRanges, Window
from data_pipeline.records import COLUMNS, OFFSETS, Examples, concatenate
from data_pipeline.shards.index import Layout, Run
from data_pipeline.shards.shard import BlockReader

SLACK = 1.05
"""Spare capacity of a slot beyond the expected, or so far observed, size of the fullest window."""


class Windows:
    """The windows of streams first_stream..last_stream (inclusive), each at the item last asked for."""

    def __init__(self, reader: BlockReader, order: Order, first_stream: int, last_stream: int) -> None:
        slots = last_stream - first_stream + 1
        items = min(order.window * order.block, order.examples)
        split = reader.split
        self.reader, self.order, self.first_stream = reader, order, first_stream
        self.layout = Layout(split.shard_examples, order.block, order.sequential)
        self._first, self._stop, self._epoch = np.zeros((3, slots), np.int64)  # items of each slot's window
        self._numbers = np.zeros((slots, items), np.int64)
        ids = np.uint16 if reader.index.vocabulary.size <= 2**16 else np.uint32
        self._arena = {  # one row per slot; ragged columns get their width when they are filled
            name: np.zeros((slots, items + 1), np.int64)
            if name in OFFSETS
            else np.zeros(
                (slots, 0 if known.rows else items), known.types[0] if len(known.types) == 1 else ids
            )
            for name, known in COLUMNS.items()
            if known.required or name in reader.index.columns
        }
        self._reserve("offsets", items * split.tokens // split.examples)
        self._reserve("masked_offsets", items * split.masked // split.examples)

    @property
    def bytes(self) -> int:
        """Memory of the open windows, in bytes."""
        return self._numbers.nbytes + sum(column.nbytes for column in self._arena.values())

    def take(self, ranges: StreamRanges) -> tuple[Examples, NDArray[np.int64], NDArray[np.int64]]:
        """Return the items of all ranges, stream by stream, with their epochs and their numbers in the split."""
        slots, first, last = ranges.streams - self.first_stream, ranges.first, ranges.last
        places = offsets_of(last - first)[:-1]
        parts, epochs, numbers, runs = [], [], [], []
        while len(slots):  # one pass, unless a step is so large that it crosses a window's end
            self._open(slots, first)
            counts = np.minimum(last, self._stop[slots]) - first
            rows = first - self._first[slots]
            parts.append(self._collected(slots, rows, rows + counts))
            epochs.append(np.repeat(self._epoch[slots], counts))
            numbers.append(_expand(counts, rows, slots, self._numbers))
            runs.append((places, counts))
            first, places = first + counts, places + counts
            more = first < last
            slots, first, last, places = slots[more], first[more], last[more], places[more]
        if len(parts) == 1:
            return parts[0], epochs[0], numbers[0]
        where = [np.repeat(places, counts) + _counted(counts) for places, counts in runs]
        back = np.argsort(np.concatenate(where))
        return concatenate(parts).take(back), np.concatenate(epochs)[back], np.concatenate(numbers)[back]

    def _collected(
        self, slots: NDArray[np.int64], first: NDArray[np.int64], stop: NDArray[np.int64]
    ) -> Examples:
        """Collect rows first[s]..stop[s]-1 of each slot in `slots`: in each column, one run of entries per slot."""
        columns: dict[str, Any] = {}
        for name, column in self._arena.items():
            if name in OFFSETS:
                columns[name] = np.empty(int((stop - first).sum()) + 1, np.int64)
                _collect_offsets(slots, first, stop, column, columns[name])
                continue
            low, high = first, stop
            if rows := COLUMNS[name].rows:
                low, high = self._arena[rows][slots, first], self._arena[rows][slots, stop]
            columns[name] = np.empty(int((high - low).sum()), column.dtype)
            _collect_runs(slots, low, high, column, columns[name])
        return Examples(**columns)

    def _open(self, slots: NDArray[np.int64], items: NDArray[np.int64]) -> None:
        """Fill every slot whose window does not hold its item."""
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
        """Write the rows of `parts`; row n goes to place places[n] of the window."""
        bounds = np.cumsum([0, *(run.rows for run, _ in parts)])
        cuts = [
            (run.first, block, places[start:stop])
            for (run, block), start, stop in zip(parts, bounds[:-1], bounds[1:], strict=True)
        ]
        for name in OFFSETS:
            lengths = np.empty(len(places), np.int64)
            for first, block, to in cuts:
                lengths[to] = np.diff(getattr(block, name)[first : first + len(to) + 1])
            self._reserve(name, int(lengths.sum()))
            np.cumsum(lengths, out=self._arena[name][slot, 1 : len(places) + 1])
        for name, column in self._arena.items():
            rows = COLUMNS[name].rows
            for first, block, to in cuts:
                source = getattr(block, name)
                if rows:
                    starts = read_only(getattr(block, rows)[first : first + len(to) + 1])
                    _scatter(read_only(source), starts, to, self._arena[rows][slot], column[slot])
                elif name not in OFFSETS:
                    column[slot, to] = source[first : first + len(to)]

    def _reserve(self, rows: str, entries: int) -> None:
        """Make room for `entries` entries per slot in the columns that the offsets `rows` cut."""
        for name, column in self._arena.items():
            if COLUMNS[name].rows == rows and entries > column.shape[1]:
                self._arena[name] = _widened(column, int(entries * SLACK))


def _widened(column: NDArray, width: int) -> NDArray:
    wide = np.zeros((len(column), width), column.dtype)
    wide[:, : column.shape[1]] = column
    return wide


def _counted(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return 0..counts[0]-1, 0..counts[1]-1, ..."""
    ends = np.cumsum(counts)
    return np.arange(ends[-1]) - np.repeat(ends - counts, counts)


def _expand(
    counts: NDArray[np.int64], rows: NDArray[np.int64], slots: NDArray[np.int64], numbers: NDArray[np.int64]
) -> NDArray[np.int64]:
    return numbers[np.repeat(slots, counts), np.repeat(rows, counts) + _counted(counts)]


@jit
def _scatter(source, starts, places, slot_offsets, slot):
    """Write row n of a ragged column, source[starts[n]:starts[n + 1]], to place places[n] of a slot."""
    for n in range(len(places)):
        copy_run(slot, slot_offsets[places[n]], source, starts[n], starts[n + 1])


@jit
def _collect_runs(slots, low, high, column, out):
    """Write the entries low[s]..high[s]-1 of each slot in `slots` back to back."""
    at = 0
    for s in range(len(slots)):
        copy_run(out, at, column[slots[s]], low[s], high[s])
        at += high[s] - low[s]


@jit
def _collect_offsets(slots, first, stop, offsets, out):
    """Write the offsets of rows first[s]..stop[s]-1 of each slot in `slots`, for rows stored back to back."""
    n = 0
    out[0] = 0
    for s in range(len(slots)):
        shift = out[n] - offsets[slots[s], first[s]]
        for r in range(first[s], stop[s]):
            n += 1
            out[n] = shift + offsets[slots[s], r + 1]
