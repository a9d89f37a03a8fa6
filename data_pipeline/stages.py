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

from data_pipeline import draws
from data_pipeline.corpus import find, merge, open_corpus, outline, save_corpus, sorted_by_key
from data_pipeline.counts import Counts
from data_pipeline.plan import Partition, Unit, members, plan, plan_json
from data_pipeline.sampling import document_passes
from data_pipeline.segments import SegmentRecipe
from data_pipeline.sentences import split
from data_pipeline.settings import DataSettings
from data_pipeline.shards import write_shard
from data_pipeline.sources import SourceFile, read
from data_pipeline.statistics import language_statistics, shard_statistics
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
    folders = [Path(part) for part in parts]
    found = []
    for number, folder in enumerate(folders):
        corpus = open_corpus(folder)
        found.append(find(number, corpus, members(corpus, partition, settings)))
    with whole_folder(out) as whole:
        merge(folders, found, whole)
    return {"documents": sum(len(rows.keys) for rows in found)}


def write_unit(
    partition: str, unit: Unit, recipe: SegmentRecipe, settings: DataSettings, number: int, shard: str
) -> dict[str, Any]:
    """Cuts, masks and shuffles the unit's examples and writes them as the shard with the path `shard`."""
    corpus = open_corpus(Path(partition))
    chosen = slice(unit.start, unit.stop)
    passes = document_passes(
        corpus.keys[chosen], corpus.sources[chosen], unit.rates, settings.seed, settings.dupe_factor
    )
    segments = recipe.segments(corpus, unit.start, unit.stop, settings.seed, passes)
    examples = recipe.corrupt(segments, settings.seed)
    order = draws.permutation(settings.seed, number, draws.SHUFFLE, len(examples))
    size = settings.block_examples
    entry = write_shard(shard, (examples.take(order[i : i + size]) for i in range(0, len(order), size)))
    statistics = shard_statistics(examples, segments.tokens, settings, recipe.mask)
    statistics |= language_statistics(segments, settings)
    return {"entry": entry.as_dict(), "statistics": statistics}


@lru_cache(maxsize=2)
def _words(vocabulary: str) -> WordCache:
    return WordCache(load_vocabulary(vocabulary))
