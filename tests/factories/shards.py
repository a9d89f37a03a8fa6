"""Examples with random content and folders of shards made of them, for tests and benchmarks of the loader's side."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_pipeline.loader.order import Order
from data_pipeline.records import Examples
from data_pipeline.shards.index import Index, write_index
from data_pipeline.shards.shard import write_shard
from data_pipeline.vocabulary.base import Vocabulary

SIZE = 300


@dataclass(frozen=True)
class StubVocabulary:
    """What write_index asks of a vocabulary."""

    size: int = SIZE
    json: str = '{"model": "none"}'
    cls: int = 1
    sep: int = 2
    mask: int = 3
    pad: int = 0
    unk: int = 4

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.json.encode()).hexdigest()


STUB = StubVocabulary()


def random_examples(
    count: int, seed: int = 0, longest: int = 24, size: int = SIZE, labels: tuple[int, ...] = (0, 1)
) -> Examples:
    """Examples of 4 to `longest` tokens, a sixth of them masked (one at least)."""
    rng = np.random.default_rng(seed)
    return filled(rng.integers(4, longest + 1, count), rng, 1 / 6, size, labels)


def filled(
    lengths: np.ndarray,
    rng: np.random.Generator,
    share: float = 0.15,
    size: int = SIZE,
    labels: tuple[int, ...] = (0, 1),
) -> Examples:
    """Examples of these lengths with ids from 5 to size - 1, a share of them masked (one at least) evenly apart, but
    not the first and the last; half of each is its first segment."""
    masked = np.maximum(1, np.rint(share * lengths)).astype(np.int64)
    offsets, masked_offsets = (np.concatenate([[0], np.cumsum(n)]) for n in (lengths, masked))
    place = np.arange(masked_offsets[-1]) - np.repeat(masked_offsets[:-1], masked)
    dtype = np.uint16 if size <= 2**16 else np.uint32
    return Examples(
        tokens=rng.integers(5, size, offsets[-1]).astype(dtype),
        offsets=offsets,
        first_lengths=(lengths // 2).astype(np.uint16),
        labels=rng.choice(labels, len(lengths)).astype(np.int8),
        masked_positions=(1 + place * np.repeat((lengths - 2) / masked, masked)).astype(np.uint16),
        masked_ids=rng.integers(5, size, masked_offsets[-1]).astype(dtype),
        masked_offsets=masked_offsets,
    )


def blocks_of(examples: Examples, block: int) -> list[Examples]:
    """The examples in blocks."""
    order = np.arange(len(examples))
    return [examples.take(order[i : i + block]) for i in range(0, len(order), block)]


def shard_folder(
    folder: Path, counts: list[int], block: int = 8, held_out: tuple[int, ...] = (), longest: int = 24
) -> tuple[Index, list[Examples]]:
    """A folder with shards of so many examples, and the training examples of each shard."""
    content = [random_examples(n, seed, longest) for seed, n in enumerate(counts)]
    aside = [random_examples(n, 1000 + seed, longest) for seed, n in enumerate(held_out)]
    return write_folder(folder, content, aside, block, longest), content


def write_folder(
    folder: Path,
    content: list[Examples],
    aside: list[Examples],
    block: int = 8,
    longest: int = 24,
    vocabulary: Vocabulary | StubVocabulary = STUB,
    **settings: object,
) -> Index:
    """A folder with shards of these examples to train on, and of these held out."""
    folder.mkdir(parents=True, exist_ok=True)
    splits = {
        name: [
            write_shard(folder / f"{name}-{i:06d}.tar", blocks_of(part, block))
            for i, part in enumerate(parts)
        ]
        for name, parts in (("train", content), ("held_out", aside))
    }
    return write_index(
        folder,
        splits=splits,
        settings={"sequence_length": longest, "seed": 1, **settings},
        block_examples=block,
        vocabulary=vocabulary,  # type: ignore[arg-type]
        statistics={"examples": sum(map(len, content)), "share": 0.15},
    )


def share_of(order: Order, step: int, rank: int, world: int) -> tuple[np.ndarray, np.ndarray]:
    """(epochs, example numbers) of what a rank reads in a step, window by window, without a file."""
    epochs, numbers = [], []
    ranges = order.stream_ranges(step, rank, world)
    for stream, first, last in zip(*(column.tolist() for column in ranges), strict=True):
        while first < last:
            window = order.window_at(stream, first)
            stop = min(last, window.first + window.items)
            flat, places = order.window_numbers(window)
            items = np.empty_like(flat)
            items[places] = flat
            numbers.append(items[first - window.first : stop - window.first])
            epochs.append(np.full(stop - first, window.epoch, np.int64))
            first = stop
    return np.concatenate(epochs), np.concatenate(numbers)


def epochs_of(order: Order, step: int) -> tuple[int, int]:
    """The epochs of the first and of the last example of a step."""
    first, after = order.sizes.before(step), order.sizes.before(step + 1)
    return first // order.examples, (after - 1) // order.examples
