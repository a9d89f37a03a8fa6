"""The three kinds of task that workers do; each reads files, writes files under a final name once whole,
and returns counts as JSON.

    read_source        one unit of a source -> tokenized documents, in the order of their keys
    gather_partition   a range of keys of all units -> one memory-mapped corpus, the pool of donors
    write_unit         a range of documents of a partition -> one shard
"""

import shutil
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline import draws
from data_pipeline.corpus import merge, open_corpus, save_sorted
from data_pipeline.counts import Counts
from data_pipeline.index import HELD_OUT
from data_pipeline.plan import Partition, Unit, is_held_out
from data_pipeline.segments import SegmentRecipe
from data_pipeline.sentences import split
from data_pipeline.settings import DataSettings
from data_pipeline.shards import write_shard
from data_pipeline.sources import SourceFile, read
from data_pipeline.statistics import shard_statistics
from data_pipeline.tokenizing import tokenize
from data_pipeline.tokens import WordCache
from data_pipeline.vocabulary import load_vocabulary


def read_source(source: SourceFile, settings: DataSettings, vocabulary: str, out: str) -> dict[str, Any]:
    """Tokenizes one unit of a source into the folder `out`."""
    counts = Counts()
    documents = (split(document, settings, counts) for document in read(source, settings, counts))
    with _whole(Path(out)) as folder:
        spool = folder / "tokens.spool"
        corpus = tokenize(documents, _words(vocabulary), counts, spool)
        save_sorted(corpus, folder)
        spool.unlink()
    return {"documents": len(corpus), "tokens": len(corpus.tokens), "counts": counts.as_dict()}


def gather_partition(
    parts: list[str], settings: DataSettings, partition: Partition, out: str
) -> dict[str, Any]:
    """Merges the partition's documents, wherever they were read, into the folder `out`."""
    chosen = []
    for part in parts:
        corpus = open_corpus(Path(part))
        first = int(np.searchsorted(corpus.keys, np.uint64(partition.low), "left"))
        last = int(np.searchsorted(corpus.keys, np.uint64(partition.high), "right"))
        aside = is_held_out(np.asarray(corpus.keys[first:last]), settings)
        chosen.append((corpus, first + np.flatnonzero(aside == (partition.split == HELD_OUT))))
    with _whole(Path(out)) as folder:
        merge(chosen, folder)
    return {"documents": sum(len(numbers) for _, numbers in chosen)}


def write_unit(
    partition: str, unit: Unit, recipe: SegmentRecipe, settings: DataSettings, number: int, shard: str
) -> dict[str, Any]:
    """Cuts, masks and shuffles the unit's examples and writes them as the shard with the path `shard`."""
    corpus = open_corpus(Path(partition))
    segments = recipe.segments(corpus, unit.start, unit.stop, settings.seed, settings.dupe_factor)
    examples = recipe.corrupt(segments, settings.seed)
    order = draws.permutation(settings.seed, number, draws.SHUFFLE, len(examples))
    size = settings.block_examples
    entry = write_shard(shard, (examples.take(order[i : i + size]) for i in range(0, len(order), size)))
    statistics = shard_statistics(examples, segments.tokens, settings, recipe.mask)
    return {"entry": entry.as_dict(), "statistics": statistics}


@lru_cache(maxsize=2)
def _words(vocabulary: str) -> WordCache:
    return WordCache(load_vocabulary(vocabulary))


class _whole:
    """A folder that gets its name only if the block ends well."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.partial = folder, folder.with_name(f"{folder.name}.partial")

    def __enter__(self) -> Path:
        shutil.rmtree(self.partial, ignore_errors=True)
        self.partial.mkdir(parents=True)
        return self.partial

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.partial.rename(self.folder)
        else:
            shutil.rmtree(self.partial, ignore_errors=True)
