"""How many examples a second does the loader hand over, packed, on one core, beside loaders of one sample at a time?

    python tests/benchmarks/bench_loader.py [--examples 1000000] [--length 128] [--folder FOLDER]

The figures of docs/evidence/benchmarks_data.md: with `--length 128` and `--length 512` on a quiet
machine, a minute each.

Makes synthetic shards and reads them back on one core in one run, caches warm: our loader (with its thread, and
without), plain WebDataset and mosaicml-streaming, each with one example a sample. The peers read the first examples
of ours over and over, and hand over padded batches of int64, the work that a collate function does; ours are packed,
shuffled and checked.

mosaicml-streaming is left out where it is not installed. Its package imports torchvision for its image datasets; here
only its base is imported, for which this is enough:

    pip install --no-deps mosaicml-streaming brotli python-snappy cramjam zstd pillow catalogue
    pip install boto3 xxhash tqdm
"""

import argparse
import importlib.util
import os
import platform
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # a plain script, also from another working directory

import numpy as np  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from data_pipeline.loader.loader import Loader, Shares, order_of  # noqa: E402
from data_pipeline.loader.packing import caps_for  # noqa: E402
from data_pipeline.records import Examples  # noqa: E402
from data_pipeline.shards.index import Index, write_index  # noqa: E402
from data_pipeline.shards.shard import BlockReader, write_shard  # noqa: E402
from tests.factories.shards import StubVocabulary, blocks_of, filled  # noqa: E402

VOCABULARY = 30522
BLOCK, PER_SHARD = 512, 40_000
BATCH, MICRO_BATCH = 256, 32
PEER_EXAMPLES = 20_000


def synthetic(count: int, length: int, seed: int) -> Examples:
    """Examples as pairs of real books have them: three in five of full length, the others of any; 15 % masked."""
    rng = np.random.default_rng(seed)
    lengths = np.where(rng.random(count) < 0.6, length, rng.integers(8, length + 1, count))
    return filled(lengths, rng, size=VOCABULARY)


def make_shards(folder: Path, examples: int, length: int) -> Index:
    """Shards of PER_SHARD examples and their index."""
    entries = []
    for number, first in enumerate(range(0, examples, PER_SHARD)):
        part = synthetic(min(PER_SHARD, examples - first), length, number)
        entries.append(write_shard(folder / f"train-{number:06d}.tar", blocks_of(part, BLOCK)))
    return write_index(
        folder,
        splits={"train": entries},
        settings={"sequence_length": length},
        block_examples=BLOCK,
        vocabulary=StubVocabulary(size=VOCABULARY),  # type: ignore[arg-type]
        statistics={},
    )


def single_samples(part: Examples) -> Iterator[dict[str, np.ndarray]]:
    """The first PEER_EXAMPLES examples one by one, in the same types."""
    for i in range(min(PEER_EXAMPLES, len(part))):
        run = slice(part.offsets[i], part.offsets[i + 1])
        masked = slice(part.masked_offsets[i], part.masked_offsets[i + 1])
        yield {
            "tokens": part.tokens[run],
            "first": part.first_lengths[i : i + 1],
            "label": part.labels[i : i + 1],
            "positions": part.masked_positions[masked],
            "ids": part.masked_ids[masked],
        }


def padded(samples: Iterator[dict[str, np.ndarray]], length: int) -> Generator[int, None, None]:
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


def webdataset_samples(path: Path, part: Examples) -> Iterator[dict[str, np.ndarray]]:
    """Plain WebDataset over a tar with one example a sample, without end."""
    import webdataset

    with webdataset.TarWriter(str(path), mtime=0) as tar:
        for number, sample in enumerate(single_samples(part)):
            tar.write({"__key__": f"{number:09d}", **{f"{k}.npy": v for k, v in sample.items()}})
    while True:
        for sample in webdataset.WebDataset(str(path), shardshuffle=False).decode():
            yield {name.split(".")[0]: value for name, value in sample.items()}


def streaming_samples(folder: Path, part: Examples) -> Iterator[dict[str, np.ndarray]]:
    """mosaicml-streaming with one example a sample, shuffled, without end."""
    base = streaming_base()
    kinds = {"tokens": "uint16", "first": "uint16", "label": "int8", "positions": "uint16", "ids": "uint16"}
    with base.MDSWriter(out=str(folder), columns={k: f"ndarray:{v}" for k, v in kinds.items()}) as writer:
        for sample in single_samples(part):
            writer.write(sample)
    data = base.StreamingDataset(
        local=str(folder), shuffle=True, batch_size=MICRO_BATCH, num_canonical_nodes=1
    )
    while True:
        samples = iter(data)
        try:
            for sample in samples:
                yield sample
        finally:
            for _ in samples:  # to the end of the epoch: its threads read the folder until then
                pass


def streaming_base() -> Any:
    """The package streaming.base, without what streaming itself would import."""
    spec = importlib.util.find_spec("streaming")
    assert spec is not None
    package = ModuleType("streaming")
    package.__path__ = list(spec.submodule_search_locations or ())
    package.__spec__ = spec
    sys.modules["streaming"] = package
    return importlib.import_module("streaming.base")


def ours(index: Index, length: int, thread: bool) -> Generator[int, None, None]:
    """The loader's steps without end."""
    order = order_of(index, seed=1, global_batch=BATCH)
    caps = caps_for(index.train, MICRO_BATCH, length)
    if not thread:
        shares = Shares(index, order, caps)
        yield from (shares.read(step).examples for step in range(2**40))
    with Loader(index, order, caps) as loader:
        yield from (share.examples for share in loader)


def rate(batches: Generator[int, None, None], seconds: float) -> tuple[float, float, int]:
    """(examples a second, examples a second of CPU time, examples) of what comes within so many seconds, after
    the first batch. On a machine that others use as well, the second number is the fairer one."""
    next(batches)
    start, busy, total = time.perf_counter(), time.process_time(), 0
    for count in batches:
        total += count
        if time.perf_counter() - start >= seconds:
            break
    speeds = total / (time.perf_counter() - start), total / (time.process_time() - busy)
    batches.close()
    return *speeds, total


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
    part = synthetic(min(PER_SHARD, examples), length, 0)
    single = folder / "single"
    single.mkdir()
    ready = "Maskmill, packed"
    runs: dict[str, Generator[int, None, None]] = {
        "blocks read and checked, nothing more": (
            len(b) for _ in range(99) for b in BlockReader(index, index.train).all_blocks()
        ),
        ready: ours(index, length, thread=False),
        "Maskmill, packed, with its thread": ours(index, length, thread=True),
        f"WebDataset {version('webdataset')}, padded": padded(
            webdataset_samples(single / "samples.tar", part), length
        ),
    }
    if importlib.util.find_spec("streaming"):
        name = f"mosaicml-streaming {version('mosaicml-streaming')}, padded"
        runs[name] = padded(streaming_samples(single / "mds", part), length)
    rates = {name: rate(batches, seconds) for name, batches in runs.items()}
    table = Table(
        *("loader", "examples/s", "a CPU second", "Maskmill / it", "examples read"),
        title=f"one core, {length} tokens at most",
    )
    for name, (speed, cpu_speed, total) in rates.items():
        times = f"{rates[ready][1] / cpu_speed:.1f}"
        table.add_row(name, f"{speed:,.0f}", f"{cpu_speed:,.0f}", times, f"{total:,}")
    if not importlib.util.find_spec("streaming"):
        table.add_row("mosaicml-streaming", "not installed", "", "", "")
    inner, every = fill(index, length)
    table.caption = (
        f"{index.train.examples:,} examples in {len(index.train.shards)} shards, "
        f"{sum(s.bytes for s in index.train.shards) / index.train.examples:.0f} bytes each; tokens filled: "
        f"{inner:.2%} but for each share's last micro-batch, {every:.2%} with it; {platform.machine()}"
    )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
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
