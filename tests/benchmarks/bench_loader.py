"""How many examples a second does the loader hand over, packed, on one core, beside loaders of one sample at a time?

    python tests/benchmarks/bench_loader.py [--examples 1000000] [--length 128] [--folder FOLDER]

Makes synthetic shards and reads them back on one core in one run, caches warm: our loader (with its thread, and
without), plain WebDataset with one example a tar member, and mosaicml-streaming where it is installed. The peers
hand over padded batches of int64, the work that a collate function does.
"""

import argparse
import hashlib
import importlib.util
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # a plain script, also from another working directory

import numpy as np  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from data_pipeline.bins import caps_for  # noqa: E402
from data_pipeline.index import Index  # noqa: E402
from data_pipeline.loader import Loader, Shares, order_of  # noqa: E402
from data_pipeline.records import Examples  # noqa: E402
from data_pipeline.shards import BlockReader, write_index, write_shard  # noqa: E402

VOCABULARY = 30522
BLOCK, PER_SHARD = 512, 40_000
BATCH, MICRO_BATCH = 256, 32
PEER_EXAMPLES = 20_000


@dataclass(frozen=True)
class NoVocabulary:
    """What write_index asks of a vocabulary; no text is tokenized here."""

    json: str = "{}"
    sha256: str = hashlib.sha256(b"{}").hexdigest()
    size: int = VOCABULARY
    cls: int = 101
    sep: int = 102
    mask: int = 103
    pad: int = 0
    unk: int = 100


def synthetic(count: int, length: int, seed: int) -> Examples:
    """Examples as pairs of real books have them: three in five of full length, the others of any; 15 % masked."""
    rng = np.random.default_rng(seed)
    lengths = np.where(rng.random(count) < 0.6, length, rng.integers(8, length + 1, count))
    masked = np.maximum(1, np.rint(0.15 * lengths).astype(np.int64))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    masked_offsets = np.concatenate([[0], np.cumsum(masked)])
    step = np.repeat(lengths / masked, masked)
    place = np.arange(masked_offsets[-1]) - np.repeat(masked_offsets[:-1], masked)
    return Examples(
        tokens=rng.integers(1000, VOCABULARY, offsets[-1]).astype(np.uint16),
        offsets=offsets,
        first_lengths=(lengths // 2).astype(np.uint16),
        labels=rng.integers(0, 2, count).astype(np.int8),
        masked_positions=(place * step).astype(np.uint16),
        masked_ids=rng.integers(1000, VOCABULARY, masked_offsets[-1]).astype(np.uint16),
        masked_offsets=masked_offsets,
    )


def make_shards(folder: Path, examples: int, length: int) -> Index:
    """Shards of PER_SHARD examples and their index."""
    entries = []
    for number, first in enumerate(range(0, examples, PER_SHARD)):
        part = synthetic(min(PER_SHARD, examples - first), length, number)
        order = np.arange(len(part))
        blocks = (part.take(order[i : i + BLOCK]) for i in range(0, len(part), BLOCK))
        entries.append(write_shard(folder / f"train-{number:06d}.tar", blocks))
    return write_index(
        folder,
        splits={"train": entries},
        settings={"sequence_length": length},
        block_examples=BLOCK,
        vocabulary=NoVocabulary(),  # type: ignore[arg-type]
        statistics={},
    )


def single_samples(length: int) -> Iterator[dict[str, np.ndarray]]:
    """The same kind of examples, one by one, in the same types."""
    part = synthetic(PEER_EXAMPLES, length, 0)
    for i in range(len(part)):
        run = slice(part.offsets[i], part.offsets[i + 1])
        masked = slice(part.masked_offsets[i], part.masked_offsets[i + 1])
        yield {
            "tokens": part.tokens[run],
            "first": part.first_lengths[i : i + 1],
            "label": part.labels[i : i + 1],
            "positions": part.masked_positions[masked],
            "ids": part.masked_ids[masked],
        }


def padded(samples: Iterator[dict[str, np.ndarray]], length: int) -> Iterator[int]:
    """Batches as a collate function makes them; yields the number of examples of each."""
    while batch := list(islice(samples, MICRO_BATCH)):
        ids, segments = np.zeros((2, len(batch), length), np.int64)
        labels = np.full((len(batch), length), -100, np.int64)
        for row, sample in enumerate(batch):
            tokens = sample["tokens"]
            ids[row, : len(tokens)] = tokens
            segments[row, int(sample["first"][0]) : len(tokens)] = 1
            labels[row, sample["positions"]] = sample["ids"]
        yield len(batch)


def webdataset_samples(path: Path, length: int) -> Callable[[], Iterator[int]]:
    """Plain WebDataset over a tar with one example a sample."""
    import webdataset

    with webdataset.TarWriter(str(path), mtime=0) as tar:
        for number, sample in enumerate(single_samples(length)):
            tar.write({"__key__": f"{number:09d}", **{f"{k}.npy": v for k, v in sample.items()}})

    def read() -> Iterator[int]:
        data = webdataset.WebDataset(str(path), shardshuffle=False).decode()
        return padded(({k.split(".")[0]: v for k, v in sample.items()} for sample in data), length)

    return read


def streaming_samples(folder: Path, length: int) -> Callable[[], Iterator[int]]:
    """mosaicml-streaming with one example a sample, shuffled."""
    from streaming import MDSWriter, StreamingDataset

    kinds = {"tokens": "uint16", "first": "uint16", "label": "int8", "positions": "uint16", "ids": "uint16"}
    with MDSWriter(out=str(folder), columns={k: f"ndarray:{v}" for k, v in kinds.items()}) as writer:
        for sample in single_samples(length):
            writer.write(sample)
    data = StreamingDataset(local=str(folder), shuffle=True, batch_size=MICRO_BATCH, num_canonical_nodes=1)
    return lambda: padded(iter(data), length)


def ours(index: Index, length: int, thread: bool) -> Iterator[int]:
    """The loader's steps without end."""
    order = order_of(index, seed=1, global_batch=BATCH)
    caps = caps_for(index.train, MICRO_BATCH, length)
    if not thread:
        shares = Shares(index, order, caps)
        yield from (shares.read(step).examples for step in range(2**40))
    with Loader(index, order, caps) as loader:
        yield from (share.examples for share in loader)


def rate(batches: Iterator[int], seconds: float) -> tuple[float, float, int]:
    """(examples a second, examples a second of CPU time, examples) of what comes within so many seconds, after
    the first batch. On a machine that others use as well, the second number is the fairer one."""
    next(batches)
    start, busy, total = time.perf_counter(), time.process_time(), 0
    for count in batches:
        total += count
        if time.perf_counter() - start >= seconds:
            break
    return total / (time.perf_counter() - start), total / (time.process_time() - busy), total


def fill(index: Index, length: int) -> tuple[float, float]:
    """Share of the token cap that is filled, without and with the last micro-batch of each share."""
    caps = caps_for(index.train, MICRO_BATCH, length)
    shares = Shares(index, order_of(index, seed=1, global_batch=BATCH), caps)
    sizes = [[len(m.input_ids) for m in shares.read(step).micro_batches] for step in range(50)]
    inner = [size for step in sizes for size in step[:-1]]
    every = [size for step in sizes for size in step]
    return float(np.mean(inner)) / caps.tokens, float(np.mean(every)) / caps.tokens


def measure(folder: Path, examples: int, length: int, seconds: float) -> Table:
    """The table of rates."""
    index = make_shards(folder, examples, length)
    single = folder / "single"
    single.mkdir()
    runs: dict[str, Iterator[int]] = {
        "blocks read and checked, nothing more": (
            len(b) for _ in range(99) for b in BlockReader(index, index.train).all_blocks()
        ),
        "Maskmill, packed": ours(index, length, thread=False),
        "Maskmill, packed, with its thread": ours(index, length, thread=True),
        "WebDataset, a sample an example, padded": webdataset_samples(single / "samples.tar", length)(),
    }
    if importlib.util.find_spec("streaming"):
        runs["mosaicml-streaming, padded"] = streaming_samples(single / "mds", length)()
    table = Table(
        "loader", "examples/s", "a CPU second", "examples read", title=f"one core, {length} tokens at most"
    )
    for name, batches in runs.items():
        *speeds, total = rate(batches, seconds)
        table.add_row(name, *(f"{speed:,.0f}" for speed in speeds), f"{total:,}")
    if "mosaicml-streaming, padded" not in runs:
        table.add_row("mosaicml-streaming", "not installed", "", "")
    inner, every = fill(index, length)
    table.caption = (
        f"{index.train.examples:,} examples in {len(index.train.shards)} shards, "
        f"{sum(s.bytes for s in index.train.shards) / index.train.examples:.0f} bytes each; tokens filled: "
        f"{inner:.2%} but for each share's last micro-batch, {every:.2%} with it; {platform.machine()}"
    )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=1_000_000)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each loader")
    parser.add_argument("--folder", type=Path, help="where the shards go; default: a temporary folder")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        table = measure(Path(folder), arguments.examples, arguments.length, arguments.seconds)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
