"""Sources in, a folder of shards with its index.json out: the stages of the mill, composed on one page.

    read_source per unit of a source -> plan -> gather_partition per range of keys -> write_unit per shard -> index

What is not finished lives in OUT/.work, each piece under its final name only when whole; a killed run finds there
what is done. Nothing depends on the number of workers: the units to read follow from the sources, partitions and
shards from the documents' keys and lengths.
"""

import json
import shutil
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Self

from data_pipeline.corpus import open_corpus
from data_pipeline.errors import UserError
from data_pipeline.exact import exact_examples
from data_pipeline.executors import Stage, Workers
from data_pipeline.index import HELD_OUT, INDEX, TRAIN, Index, ShardEntry, canonical_json, write_index
from data_pipeline.packing import original_tokens
from data_pipeline.plan import Partition, plan
from data_pipeline.recipes import recipe_of
from data_pipeline.segments import SegmentRecipe
from data_pipeline.settings import DataSettings, deciding_values, required
from data_pipeline.shards import write_shard
from data_pipeline.sources import SourceFile, discover
from data_pipeline.stages import gather_partition, read_source, write_unit
from data_pipeline.statistics import add_up, padding_statistics, shard_statistics
from data_pipeline.storage import write_whole
from data_pipeline.vocabulary import Vocabulary, load_vocabulary

WORK, SHARDS, LOG = ".work", "shards", "prepare.log.json"


def prepare(settings: DataSettings, stage: Stage) -> tuple[Index, bool]:
    """Makes the shards that `settings` describe; returns their index, and False where they were there already.

    Raises UserError for sources, a vocabulary or settings that cannot be used, and for a folder that holds other
    data; what was there before stays."""
    started = time.monotonic()
    out = Path(required(settings.out, "data.out", "a folder for the shards"))
    vocabulary = load_vocabulary(required(settings.vocab, "data.vocab", "`maskmill vocab` makes one"))
    recipe = recipe_of(settings, vocabulary)
    files = discover(settings)
    sources = _sources(files)
    if (out / INDEX).exists():
        index = _existing(out, settings, vocabulary, sources)
        shutil.rmtree(out / WORK, ignore_errors=True)
        return index, False
    identity = canonical_json([deciding_values(settings), vocabulary.sha256, sources])
    work = _work_folder(out, identity, vocabulary)
    job = Job(settings, recipe, vocabulary, work, stage)
    shards = _exact(job, files) if settings.mode == "exact" else _fast(job, files)
    index = _finish(job, shards, out)
    log = {"workers": settings.workers, "executor": settings.executor, "seconds": time.monotonic() - started}
    write_whole(out / LOG, canonical_json(log | {"sources": sources}, indent=1))
    shutil.rmtree(work)
    return index, True


@dataclass(frozen=True)
class Shards:
    """What the stages made: entries and counts of each split, and what was met while reading."""

    splits: dict[str, list[ShardEntry]]
    statistics: dict[str, list[dict[str, Any]]]
    reading: dict[str, Any]

    @classmethod
    def of(cls, results: list[tuple[str, dict[str, Any]]], reading: dict[str, Any]) -> Self:
        """From the results of `write_unit`, each with the name of its split."""
        made = {n: [r for split, r in results if split == n] for n in (TRAIN, HELD_OUT)}
        entries = {n: [ShardEntry.from_dict(r["entry"], WORK) for r in found] for n, found in made.items()}
        return cls(entries, {n: [r["statistics"] for r in found] for n, found in made.items()}, reading)


@dataclass(frozen=True)
class Job:
    """What the stages share."""

    settings: DataSettings
    recipe: SegmentRecipe
    vocabulary: Vocabulary
    work: Path
    stage: Stage

    @property
    def tokenizer(self) -> str:
        """The vocabulary as a file that workers read."""
        return str(self.work / "tokenizer.json")


def _fast(job: Job, files: list[SourceFile]) -> Shards:
    settings, work = job.settings, job.work
    with Workers(settings.workers) as workers:
        parts = [str(work / "read" / f"{number:06d}") for number in range(len(files))]
        with job.stage("reading and tokenizing", len(files)) as advance:
            reads = [(file, settings, job.tokenizer, part) for file, part in zip(files, parts, strict=True)]
            read_parts = workers.run(read_source, reads, work / "read-done", advance)
        partitions = plan([open_corpus(Path(part)) for part in parts], settings)
        folders = [str(work / "gathered" / f"{number:06d}") for number in range(len(partitions))]
        with job.stage("gathering documents", len(partitions)) as advance:
            gathers = [(parts, settings, p, folder) for p, folder in zip(partitions, folders, strict=True)]
            workers.run(gather_partition, gathers, work / "gathered-done", advance)
        tasks, splits = _shard_tasks(job, partitions, folders)
        with job.stage("writing shards", len(tasks)) as advance:
            written = workers.run(write_unit, tasks, work / "shards-done", advance)
    reading = add_up(part["counts"] for part in read_parts)
    return Shards.of(list(zip(splits, written, strict=True)), reading)


def _shard_tasks(job: Job, partitions: list[Partition], folders: list[str]) -> tuple[list[tuple], list[str]]:
    """Arguments of `write_unit` for every shard, and the split of each."""
    tasks: list[tuple] = []
    splits: list[str] = []
    for partition, folder in zip(partitions, folders, strict=True):
        for unit in partition.units:
            shard = job.work / SHARDS / f"{partition.split}-{splits.count(partition.split):06d}.tar"
            tasks.append((folder, unit, job.recipe, job.settings, len(tasks), str(shard)))
            splits.append(partition.split)
    return tasks, splits


def _exact(job: Job, files: list[SourceFile]) -> Shards:
    """One process, one pass after the other, in the order of google-research/bert's script."""
    settings = job.settings
    results: list[tuple[str, dict[str, Any]]] = []
    blocks = exact_examples(files, job.vocabulary, settings, job.work)
    a_shard = max(1, settings.shard_tokens // (settings.sequence_length * settings.block_examples))
    with job.stage("writing instances", 0) as advance:
        while some := list(islice(blocks, a_shard)):
            entry = write_shard(job.work / SHARDS / f"{TRAIN}-{len(results):06d}.tar", some)
            counts = [
                shard_statistics(b, original_tokens(b), settings, job.vocabulary.mask)
                | padding_statistics(b.lengths, settings)
                for b in some
            ]
            results.append((TRAIN, {"entry": entry.as_dict(), "statistics": add_up(counts)}))
            advance(entry.examples)
    return Shards.of(results, {})


def _finish(job: Job, shards: Shards, out: Path) -> Index:
    """Moves the shards to their place and, last of all, writes the index."""
    for path in sorted((job.work / SHARDS).iterdir()):
        path.replace(out / path.name)
    statistics: dict[str, Any] = {"reading": shards.reading}
    statistics |= {split: add_up(parts) for split, parts in shards.statistics.items() if parts}
    return write_index(
        out,
        splits=shards.splits,
        settings=deciding_values(job.settings),
        block_examples=job.settings.block_examples,
        vocabulary=job.vocabulary,
        statistics=statistics,
    )


def _sources(files: list[SourceFile]) -> list[list[Any]]:
    """What the data were made from: names, sizes and times of the units, without the folder that they lie in."""
    return [[f.name, f.size, f.start, f.stop, f.stripe, _changed(f.uri)] for f in files]


def _changed(uri: str) -> int:
    path = Path(uri)
    return path.stat().st_mtime_ns if path.is_file() else 0


def _work_folder(out: Path, identity: bytes, vocabulary: Vocabulary) -> Path:
    """OUT/.work, with what a killed run of the same identity left in it, or empty. Raises UserError for a folder
    that holds anything but such work: nothing of somebody else's is overwritten."""
    work = out / WORK
    note = work / "identity.json"
    ours = note.is_file() and note.read_bytes() == identity
    if out.exists() and not ours:
        shutil.rmtree(work, ignore_errors=True)
        if any(out.iterdir()):
            raise UserError(
                "holds other files", where=out, expected="a new or empty folder", remedy="choose another"
            )
    (work / SHARDS).mkdir(parents=True, exist_ok=True)
    write_whole(work / "tokenizer.json", vocabulary.json.encode())
    write_whole(note, identity)
    return work


def _existing(out: Path, settings: DataSettings, vocabulary: Vocabulary, sources: list[list[Any]]) -> Index:
    """The index that is there, if it is of these very settings and sources."""
    index = Index.load(out)
    wanted = deciding_values(settings)
    differing = [
        f"data.{k}={wanted.get(k)} (there: {v})" for k, v in index.settings.items() if wanted.get(k) != v
    ]
    if index.vocabulary.sha256 != vocabulary.sha256:
        differing.append(f"vocabulary {vocabulary.sha256[:12]} (there: {index.vocabulary.sha256[:12]})")
    log = out / LOG
    if log.is_file() and json.loads(log.read_bytes()).get("sources") != sources:
        differing.append("its sources had other names, sizes or times")
    if differing:
        raise UserError(
            f"holds other data: {', '.join(differing)}",
            where=out,
            remedy="choose another data.out, or remove it",
        )
    return index
