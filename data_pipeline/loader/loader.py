"""Load each rank's examples per step as packed batches, prefetched by a thread and resumable at any step.

    Order (who reads what) -> Windows (blocks, checked and shuffled) -> [DynamicMasking] -> [Separators]
    -> pack (micro-batches) -> StepShare

A share is a pure function of (index, order, masking, separators, rank, world, step): the state is the number of the
next batch. A dynamic mask is a function of (seed, epoch, number of the example) and of the stage, which follows from
the number of the global batch. So it is the same at every world size and after every resume. Held-out examples are
never re-masked.
"""

import queue
import threading
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import UserError
from data_pipeline.loader.order import Order, rank_range
from data_pipeline.loader.packing import Caps, Separators, StepShare, example_keys, original_tokens, pack
from data_pipeline.loader.shuffle_windows import Windows
from data_pipeline.masking.masker import Corruption, corruption_of
from data_pipeline.records import Examples, Segments, concatenate
from data_pipeline.rng import DYNAMIC_MASK
from data_pipeline.settings import (
    AFFECTING_MASKS,
    LATER,
    SEQUENTIAL,
    DataSettings,
    mask_stages,
    settings_affecting_bytes,
)
from data_pipeline.shards.index import TOKENIZER, Index, Layout
from data_pipeline.shards.shard import BlockReader
from data_pipeline.vocabulary.base import Vocabulary
from data_pipeline.vocabulary.files import load_vocabulary

# Re-mask examples: RoBERTa's dynamic masking (Liu et al. 2019, section 4.1) and ERNIE's stages.

_SEGMENTS = {column.name for column in fields(Segments)}


@dataclass(frozen=True, eq=False)
class DynamicMasking:
    """Re-mask examples with the masker of the stage that their global batch belongs to."""

    seed: int
    firsts: tuple[int, ...]
    """First global batch of each stage."""
    maskers: tuple[Corruption, ...]
    identity: Mapping[str, Any]
    """The settings that affect the masks, by name; for the lexicon, its SHA-256."""

    @classmethod
    def from_settings(cls, settings: DataSettings, vocabulary: Vocabulary, seed: int) -> Self:
        """Build the masking of data.mask_stages, or of data.masking. Raises UserError if a setting is out of range
        or the lexicon cannot be used."""
        found = mask_stages(settings)
        kinds = {kind: corruption_of(replace(settings, masking=kind), vocabulary) for _, kind in found}
        values = settings_affecting_bytes(settings)
        return cls(
            seed=seed,
            firsts=tuple(stage.first for stage in found),
            maskers=tuple(kinds[stage.kind] for stage in found),
            identity={name: values[name] for name in AFFECTING_MASKS if values[name] != LATER.get(name)}
            | {"mask_stages": list(settings.mask_stages)},
        )

    def masker(self, batch: int) -> Corruption:
        """Return the masker of global batch number `batch`."""
        return self.maskers[int(np.searchsorted(self.firsts, batch, "right")) - 1]

    def __call__(
        self, examples: Examples, batch: int, epochs: NDArray[np.int64], numbers: NDArray[np.int64]
    ) -> Examples:
        """Return the examples of global batch `batch`, of these epochs and numbers in their split, with new masks."""
        given = {name: column for name, column in examples.columns.items() if name in _SEGMENTS}
        drawn = {"tokens": original_tokens(examples), "keys": example_keys(epochs, numbers)}
        segments = Segments(**given | drawn)
        return self.masker(batch)(segments, self.seed, DYNAMIC_MASK)


def shards_vocabulary(index: Index) -> Vocabulary:
    """Load the vocabulary whose copy is next to the shards. Raises UserError if it is missing or differs."""
    with TemporaryDirectory() as folder:  # the shards may be in an object store
        path = Path(folder) / TOKENIZER
        path.write_bytes(index.tokenizer_json())
        vocabulary = load_vocabulary(path)
    if vocabulary.sha256 != index.vocabulary.sha256:  # of other bytes than its own canonical ones
        raise UserError(
            "not as this version writes it", where=index.path(TOKENIZER), remedy="prepare the shards again"
        )
    return vocabulary


# Prefetch the items of an iterator in one background thread.

Item = TypeVar("Item")


class _End:
    """The last item of the thread: the error that stopped it, or None if the source ended."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class Prefetch(Generic[Item]):
    """Iterate over `source` in a thread, at most `ahead` items before the consumer.

    An error of the source is raised in place of its item, and at every call after that. `close` stops the thread and
    waits for it; so do the end of a `with` block, garbage collection of the object and process exit.
    """

    def __init__(self, source: Iterator[Item], ahead: int) -> None:
        # two queues written in C: a bounded one is of Python, and its locks cost a fast loader some 4 % of its time
        self._items: queue.SimpleQueue[Item | _End] = queue.SimpleQueue()
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(max(1, ahead)):
            self._room.put(None)
        self._end: _End | None = None
        stop = threading.Event()
        # the thread must not reference self or its methods, or self would never be collected
        thread = threading.Thread(
            target=_produce,
            args=(source, self._items, self._room, stop),
            name="maskmill-loader",
            daemon=True,
        )
        self._finalize = weakref.finalize(self, _shut_down, thread, self._room, stop)
        thread.start()

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        if self._end is None:
            if not self._finalize.alive:
                raise RuntimeError("the loader was closed")
            item = self._items.get()
            if not isinstance(item, _End):
                self._room.put(None)
                return item
            self._end = item
        raise self._end.error or StopIteration

    def __enter__(self) -> "Prefetch[Item]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the thread; no items can be taken afterwards."""
        self._finalize()


def _produce(
    source: Iterator[Item],
    items: "queue.SimpleQueue[Item | _End]",
    room: "queue.SimpleQueue[None]",
    stop: threading.Event,
) -> None:
    try:
        for item in source:
            room.get()  # `_shut_down` makes some
            if stop.is_set():
                return
            items.put(item)
            del item
        items.put(_End(None))
    except BaseException as error:
        items.put(_End(error))


def _shut_down(thread: threading.Thread, room: "queue.SimpleQueue[None]", stop: threading.Event) -> None:
    stop.set()
    room.put(None)
    thread.join()


# Read a rank's shares of the training examples, from any batch on.


def order_of(
    index: Index,
    *,
    seed: int,
    global_batch: int,
    streams: int = 0,
    sequential: bool = False,
    ramp_from: int = 0,
    ramp_batches: int = 0,
    both_directions: bool = False,
) -> Order:
    """Return the order of the index's training examples; streams=0 chooses the number of streams. Raises UserError
    if there are no examples, if the streams do not divide the batch, or for a sequential order of shuffled shards."""
    if sequential and index.settings.get("order") != SEQUENTIAL:
        raise UserError(
            "the shards hold their examples shuffled: no document could be read in order",
            where=index.folder,
            expected="shards prepared with data.order=sequential",
            remedy="prepare them in another data.out, or data.order=shuffled",
        )
    return Order.of(
        index.train.examples,
        index.block_examples,
        seed,
        global_batch,
        streams,
        sequential,
        ramp_from,
        ramp_batches,
        both_directions,
    )


@dataclass(frozen=True)
class Footprint:
    """What a rank keeps in memory."""

    streams: int
    open_blocks: int
    """Blocks in the windows of all its streams."""
    bytes: int
    """Approximate memory of the windows."""


class Shares:
    """Map step numbers to the rank's shares. Cheapest in ascending order, correct in any. `masking` re-masks all
    examples, `separators` changes their [SEP]; with `skip_damaged`, examples of missing or changed blocks are left
    out."""

    def __init__(
        self,
        index: Index,
        order: Order,
        caps: Caps,
        rank: int = 0,
        world: int = 1,
        masking: DynamicMasking | None = None,
        skip_damaged: bool = False,
        separators: Separators | None = None,
    ) -> None:
        self.order, self.caps, self.masking, self.split = order, caps, masking, index.train
        self._separators = separators
        if order.examples != self.split.examples or order.block != index.block_examples:
            raise ValueError("this order was made for another index")
        rank_range(order.sizes.smallest, rank, world)  # raises for more ranks than examples in any batch
        first, last = order.streams_of(rank, world)
        self._rank, self._world = rank, world
        self._reader = BlockReader(index, self.split, skip_damaged)
        self._windows = Windows(self._reader, order, first, last)
        self._streams = last - first + 1

    def read(self, batch: int) -> StepShare:
        """Read this rank's examples of global batch number `batch`, packed. Raises UserError for shards that cannot
        be read or, unless skip_damaged, have changed."""
        ranges = self.order.stream_ranges(batch, self._rank, self._world)
        examples, epochs, numbers = self._windows.take(ranges)
        streams = np.repeat(ranges.streams, ranges.last - ranges.first)
        damage = tuple(self._reader.found())
        lengths = examples.lengths
        if not lengths.all():  # examples of damaged blocks have no tokens
            there = np.flatnonzero(lengths)
            examples, epochs, numbers = examples.take(there), epochs[there], numbers[there]
            streams = streams[there]
        if self.masking is not None and len(examples):
            examples = self.masking(examples, batch, epochs, numbers)
        if self._separators is not None and len(examples):
            examples = self._separators(examples)
        share = pack(examples, self.caps, batch=batch, epochs=epochs, numbers=numbers, streams=streams)
        return replace(share, damage=damage) if damage else share

    @property
    def footprint(self) -> Footprint:
        """Return what is kept in memory, for the summary before a run."""
        order = self.order
        blocks = self._streams * min(order.window, -(-order.examples // order.block))
        return Footprint(self._streams, blocks, self._windows.bytes)


class Loader:
    """Iterate over this rank's shares of batch start_batch, start_batch + 1, ... without end."""

    def __init__(
        self,
        index: Index,
        order: Order,
        caps: Caps,
        *,
        rank: int = 0,
        world: int = 1,
        start_batch: int = 0,
        ahead: int = 2,
        masking: DynamicMasking | None = None,
        skip_damaged: bool = False,
        separators: Separators | None = None,
    ) -> None:
        """Prefetch `ahead` shares; call `close`, or use it as a context manager. With `skip_damaged`, shares lack
        the examples of missing or changed blocks. Raises UserError for more ranks than examples in a batch."""
        self.batch = start_batch
        """Number of the next batch."""
        self.index, self.order = index, order
        shares = Shares(index, order, caps, rank, world, masking, skip_damaged, separators)
        self.footprint = shares.footprint
        self._ahead = Prefetch(_shares_from(shares, start_batch), ahead)

    def __iter__(self) -> Iterator[StepShare]:
        return self

    def __next__(self) -> StepShare:
        """Return the share of batch `self.batch`. Raises the error that reading it raised."""
        share = next(self._ahead)
        self.batch = share.batch + 1
        return share

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the prefetch thread."""
        self._ahead.close()


def loader_state(
    index: Index, order: Order, batch: int, masking: DynamicMasking | None = None
) -> dict[str, Any]:
    """Return what a checkpoint keeps so that training resumes at batch number `batch`."""
    masks = dict(masking.identity) if masking else None
    return {"batch": batch, "data": index.identity, "order": asdict(order), "masking": masks}


def resumed_batch(
    state: dict[str, Any], index: Index, order: Order, masking: DynamicMasking | None = None
) -> int:
    """Return the batch at which `state` resumes. Raises UserError if the data, the order or the masks differ."""
    now = loader_state(index, order, state["batch"], masking)
    # what older states lack is as it was for all
    younger = {"sequential": False, "ramp_from": 0, "ramp_batches": 0, "both_directions": False}
    before = younger | state["order"]
    differing = [name for name in now["order"] if before.get(name) != now["order"][name]]
    then, masks = state.get("masking"), now["masking"]
    if then is None or masks is None:
        differing += ["data.dynamic_masking"] * (then is not masks)
    else:
        differing += [f"data.{name}" for name in masks if then.get(name) != masks[name]]
    if state["data"] != now["data"]:
        differing.insert(0, "index.json")
    if differing:
        raise UserError(
            f"the checkpoint was read from other data, in another order or with other masks: "
            f"{', '.join(differing)} differ",
            where=index.folder,
            remedy="use the same shards and settings, or start a new run",
        )
    return int(state["batch"])


# Read a rank's part of the held-out examples.


def held_out(
    index: Index,
    limit: int,
    caps: Caps,
    rank: int = 0,
    world: int = 1,
    separators: Separators | None = None,
) -> StepShare:
    """Return this rank's part of the first `limit` held-out examples (or all, if there are fewer), packed like a
    step; empty if there are more ranks than examples. Always the same examples, independent of the seed."""
    split = index.held_out
    total = min(limit, split.examples)
    start, stop = rank * total // world, (rank + 1) * total // world
    numbers = np.arange(start, stop)
    examples = Examples.blank(0, index.columns)
    if start < stop:
        examples = held_out_examples(index, start, stop, separators)
    return pack(examples, caps, batch=0, epochs=np.zeros(len(numbers), np.int64), numbers=numbers)


def held_out_steps(
    index: Index,
    limit: int,
    caps: Caps,
    streams: int,
    rank: int = 0,
    world: int = 1,
    separators: Separators | None = None,
    both_directions: bool = False,
) -> list[StepShare]:
    """Read this rank's part of the same examples as `held_out`, for a model with memory: cut into `streams`
    contiguous ranges; each step has the next example of each range. In both directions, those of odd number are read
    backwards."""
    total = min(limit, index.held_out.examples)
    streams = min(streams, total)
    starts = np.arange(streams + 1) * total // streams
    own = np.arange(rank * streams // world, (rank + 1) * streams // world)
    if not len(own):
        return []
    base = int(starts[own[0]])
    examples = held_out_examples(index, base, int(starts[own[-1] + 1]), separators)
    shares = []
    for step in range(int(np.diff(starts).max())):
        there = own[starts[own] + step < starts[own + 1]]
        if len(there):
            numbers = starts[there] + step
            if both_directions:
                numbers = np.where(there % 2, starts[there + 1] - 1 - step, numbers)
            part, epochs = examples.take(numbers - base), np.zeros(len(there), np.int64)
            shares.append(pack(part, caps, batch=step, epochs=epochs, numbers=numbers, streams=there))
    return shares


def _shares_from(shares: Shares, start: int) -> Iterator[StepShare]:
    return map(shares.read, count(start))


def held_out_examples(index: Index, start: int, stop: int, separators: Separators | None = None) -> Examples:
    """Read the held-out examples from number `start` up to `stop`, at least one."""
    layout = Layout(index.held_out.shard_examples, index.block_examples)
    runs = list(layout.runs(start, stop - start))
    blocks = BlockReader(index, index.held_out).read([(run.shard, run.block) for run in runs])
    found = concatenate(
        [
            block.take(np.arange(run.first, run.first + run.rows))
            for run, block in zip(runs, blocks, strict=True)
        ]
    )
    return found if separators is None else separators(found)
