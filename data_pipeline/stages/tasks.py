"""Define the tasks that workers run.

Each reads files, writes files that get their final name once complete, and returns counts as JSON. Two of them are in
data_pipeline/sources/deduplicate.py; they run only if repeats are dropped.

    fingerprint     one part of a source -> hashes of its text                 (deduplicate.py)
    find_repeats    a range of hashes of all parts -> what repeats             (deduplicate.py)
    read_source     one part of a source -> tokenized documents, in key order
    plan_shards     all parts -> the ranges of keys that form pools of random-next documents, and the shards
    gather_pool     a range of keys of all parts -> one memory-mapped corpus, the pool
    write_range     a range of documents of a pool -> one shard
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from data_pipeline.io.files import (
    exists,
    join,
    open_to_write,
    temporary_folder,
    whole_folder,
    write_whole,
    writing,
)
from data_pipeline.io.npy import mapped, offsets_of, release
from data_pipeline.io.object_store import upload
from data_pipeline.masking.masker import Corruption
from data_pipeline.records import OFFSETS, Document, Examples, concatenate
from data_pipeline.rng import words
from data_pipeline.sequences.base import SequenceBuilder
from data_pipeline.settings import DataSettings
from data_pipeline.shards.shard import arrangement, write_shard
from data_pipeline.shards.statistics import (
    add_up,
    language_statistics,
    padding_statistics,
    shard_statistics,
    text_statistics,
)
from data_pipeline.sources.cleaning import Counts
from data_pipeline.sources.deduplicate import Repeats, without_repeats
from data_pipeline.sources.formats import SourceFile
from data_pipeline.sources.listing import document_passes
from data_pipeline.sources.read import read
from data_pipeline.stages.corpus import (
    DocumentPool,
    ShardRange,
    locate,
    members,
    merge,
    open_corpus,
    outline,
    plan_pools,
    pools_json,
    save_sorted,
    token_counts,
)
from data_pipeline.tokenize.sentences import split
from data_pipeline.tokenize.tokenize import WordCache, tokenize
from data_pipeline.vocabulary.base import Vocabulary
from data_pipeline.vocabulary.files import load_vocabulary
from data_pipeline.vocabulary.fit import Fit, Stripped, stripped

# Collect examples part by part, in columns that spill to disk when they exceed memory.


def spill(parts: Iterable[Examples], folder: Path) -> Examples:
    """Concatenate the examples of `parts`, at least one. The columns are written to `folder` and memory-mapped,
    except the offsets: 16 bytes per example. Raises UserError if the disk is full."""
    dtypes: dict[str, np.dtype] = {}
    lengths: dict[str, list[NDArray]] = {name: [] for name in OFFSETS}
    with writing(folder), ExitStack() as stack:
        files: dict[str, BinaryIO] = {}
        for part in parts:
            for name, column in part.columns.items():
                if name in lengths:
                    lengths[name].append(np.diff(column))
                    continue
                if name not in files:
                    files[name] = stack.enter_context(open_to_write(folder / f"instances.{name}", "wb"))
                dtypes[name] = column.dtype
                files[name].write(np.ascontiguousarray(column).data)
    columns = {name: mapped(folder / f"instances.{name}", dtype) for name, dtype in dtypes.items()}
    offsets: dict[str, Any] = {name: offsets_of(np.concatenate(found)) for name, found in lengths.items()}
    return Examples(**columns, **offsets)


# Tokenize a part, judge a vocabulary by a sample of the parts, plan, gather a pool, and write a shard.

SAMPLED_PARTS = 16
SAMPLED_CHARACTERS = 1 << 16
"""Characters of each sampled part by which a vocabulary is judged: less than a second for all of them."""
MAX_TOKENS_IN_MEMORY = 1 << 25
"""A shard of more tokens, such as one with a huge document, is assembled on disk."""


def read_source(
    source: SourceFile, settings: DataSettings, vocabulary: str, out: str, repeats: Repeats | None = None
) -> dict[str, Any]:
    """Tokenize one part of a source, without what `repeats`, into the folder `out`."""
    counts = Counts()
    kept = without_repeats(read(source, settings, counts), repeats, counts)
    documents = (split(document, settings, counts) for document in kept)
    with whole_folder(out) as folder:
        raw = folder / "tokens.raw"
        corpus = tokenize(documents, _words(vocabulary), counts, raw)
        save_sorted(corpus, folder)
        raw.unlink()
    read_result = {"documents": len(corpus), "tokens": len(corpus.tokens), "counts": counts.as_dict()}
    return read_result | ({"bad": counts.first_bad} if counts.first_bad else {})


def sampled_fit(parts: Sequence[SourceFile], settings: DataSettings, vocabulary: Vocabulary) -> Fit:
    """Judge the vocabulary by the beginnings of at most SAMPLED_PARTS parts, evenly spaced. Raises UserError for a part
    that cannot be read."""
    places = range(SAMPLED_PARTS if parts else 0)
    chosen = dict.fromkeys(parts[i * len(parts) // SAMPLED_PARTS] for i in places)
    heads = [head for part in chosen for head in _heads(part, settings)]
    counts = Counts()
    tokenize((split(head, settings, counts) for head in heads), WordCache(vocabulary), counts)
    return Fit(counts, stripped(head.text for head in heads) if vocabulary.strips_accents else Stripped(0, 0))


def _heads(part: SourceFile, settings: DataSettings) -> Iterator[Document]:
    """Yield the documents at the beginning of a part, cut after SAMPLED_CHARACTERS characters in all."""
    left = SAMPLED_CHARACTERS
    for document in read(part, settings, Counts()):
        head = document.text[:left]
        yield Document(document.id, head, document.source)
        left -= len(head)
        if left <= 0:
            return


def ready() -> None:
    """Load what every stage needs, including the compiler's tables: most of a second."""
    words(0, 0, 0, 1)


def plan_shards(parts: list[str], settings: DataSettings, out: str) -> dict[str, Any]:
    """Write the pools of the documents in the folders `parts`, and their shards, to the file `out`."""
    pools = plan_pools([outline(Path(part)) for part in parts], settings)
    write_whole(out, pools_json(pools))
    return {"pools": len(pools), "shards": sum(len(pool.shards) for pool in pools)}


def gather_pool(
    parts: list[str], settings: DataSettings, pool: DocumentPool, out: str, threads: int = 1
) -> dict[str, Any]:
    """Merge the pool's documents from all parts into the folder `out`."""
    folders = [Path(part) for part in parts]
    found = []
    for number, folder in enumerate(folders):
        corpus = open_corpus(folder)
        found.append(locate(number, corpus, members(corpus, pool, settings)))
    with whole_folder(out) as whole:
        merge(folders, found, whole, threads)
    return {"documents": sum(len(rows.keys) for rows in found)}


def write_range(
    pool: str,
    chosen: ShardRange,
    builder: SequenceBuilder,
    corruption: Corruption,
    mask_id: int,
    settings: DataSettings,
    number: int,
    shard: str,
    deliver_to: str = "",
) -> dict[str, Any]:
    """Cut, mask and order the examples of a range of documents, and write them as the shard at the path `shard`,
    which is moved to the URI `deliver_to` if there is one."""
    corpus = open_corpus(Path(pool))
    documents = slice(chosen.start, chosen.stop)
    passes = document_passes(
        corpus.keys[documents],
        corpus.sources[documents],
        chosen.source_rates,
        settings.seed,
        settings.dupe_factor,
    )
    tokens, used = token_counts(corpus, documents), 0
    counts: list[dict[str, Any]] = []

    def masked() -> Iterator[Examples]:
        nonlocal used
        for segments in builder.pieces(corpus, chosen.start, chosen.stop, settings.seed, passes):
            examples = corruption(segments, settings.seed)
            statistics = shard_statistics(examples, segments.tokens, settings, mask_id)
            counts.append(statistics | language_statistics(segments, settings))
            used += segments.tokens_used
            yield examples

    with _gathered_examples(masked(), int(tokens @ passes), Path(shard)) as examples:
        order = arrangement(examples.lengths, settings, number)
        entry = write_shard(shard, _blocks(examples, order, settings.block_examples))
        padding = padding_statistics(examples.lengths[order], settings)
    deliver(Path(shard), deliver_to)
    text = text_statistics(tokens, passes, builder.least_tokens, used)
    return {"entry": entry.as_dict(), "statistics": add_up(counts) | text | padding}


def deliver(shard: Path, uri: str) -> None:
    """Move a shard and its block table into a folder of an object store, each atomically, the table first; do
    nothing if `uri` is empty. Another process may do the same concurrently: whoever removes a file has sent the same
    bytes."""
    if uri:
        for file in (shard.with_suffix(".json"), shard):
            there = join(uri, file.name)
            try:
                upload(file, there)
            except FileNotFoundError:
                if file.exists() or not exists(there):  # the bucket is missing
                    raise
            file.unlink(missing_ok=True)


@contextmanager
def _gathered_examples(parts: Iterator[Examples], tokens: int, shard: Path) -> Iterator[Examples]:
    """Concatenate `parts`, in memory or, if there are too many `tokens` for it, in files next to the shard."""
    if tokens <= MAX_TOKENS_IN_MEMORY:
        yield concatenate(list(parts))
        return
    with temporary_folder(shard) as folder:
        yield spill(parts, folder)


def _blocks(examples: Examples, order: NDArray[np.int64], size: int) -> Iterator[Examples]:
    for first in range(0, len(order), size):
        yield examples.take(order[first : first + size])
        release(examples)


@lru_cache(maxsize=2)
def _words(vocabulary: str) -> WordCache:
    return WordCache(load_vocabulary(vocabulary))
