"""The kinds of task that workers do; each reads files, writes files under a final name once whole, and returns
counts as JSON.

    read_source        one unit of a source -> tokenized documents, in the order of their keys
    make_plan          all units -> the ranges of keys that form pools of donors, and the shards
    gather_partition   a range of keys of all units -> one memory-mapped corpus, the pool of donors
    write_unit         a range of documents of a partition -> one shard
"""

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline import draws
from data_pipeline.corpus import find, merge, open_corpus, outline, save_corpus, sorted_by_key
from data_pipeline.counts import Counts
from data_pipeline.index import HELD_OUT
from data_pipeline.plan import Partition, Unit, is_held_out, plan, plan_json
from data_pipeline.segments import SegmentRecipe
from data_pipeline.sentences import split
from data_pipeline.settings import DataSettings
from data_pipeline.shards import write_shard
from data_pipeline.sources import SourceFile, read
from data_pipeline.statistics import shard_statistics
from data_pipeline.storage import whole_folder, write_whole
from data_pipeline.tokenizing import tokenize
from data_pipeline.tokens import WordCache
from data_pipeline.vocabulary import load_vocabulary


def read_source(source: SourceFile, settings: DataSettings, vocabulary: str, out: str) -> dict[str, Any]:
    """Tokenizes one unit of a source into the folder `out`."""
    counts = Counts()
    documents = (split(document, settings, counts) for document in read(source, settings, counts))
    corpus = sorted_by_key(tokenize(documents, _words(vocabulary), counts))
    with whole_folder(out) as folder:
        save_corpus(corpus, folder)
    return {"documents": len(corpus), "tokens": len(corpus.tokens), "counts": counts.as_dict()}


def make_plan(parts: list[str], settings: DataSettings, out: str) -> dict[str, Any]:
    """Writes the partitions of the documents in the folders `parts`, and their shards, to the file `out`."""
    partitions = plan([outline(Path(part)) for part in parts], settings)
    write_whole(out, plan_json(partitions))
    return {"partitions": len(partitions), "shards": sum(len(p.units) for p in partitions)}


def gather_partition(
    parts: list[str], settings: DataSettings, partition: Partition, out: str
) -> dict[str, Any]:
    """Merges the partition's documents, wherever they were read, into the folder `out`."""
    found = []
    for number, part in enumerate(parts):
        corpus = open_corpus(Path(part))
        first = int(np.searchsorted(corpus.keys, np.uint64(partition.low), "left"))
        last = int(np.searchsorted(corpus.keys, np.uint64(partition.high), "right"))
        aside = is_held_out(np.asarray(corpus.keys[first:last]), settings)
        found.append(find(number, corpus, first + np.flatnonzero(aside == (partition.split == HELD_OUT))))
    with whole_folder(out) as folder:
        merge([Path(part) for part in parts], found, folder)
    return {"documents": sum(len(rows.keys) for rows in found)}


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
