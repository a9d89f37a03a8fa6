"""List the tasks of each stage of a preparation; they follow from its folders alone."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_pipeline.shards.index import HELD_OUT, TRAIN
from data_pipeline.sources.deduplicate import Repeats, find_repeats, fingerprint, kinds, ranges
from data_pipeline.stages import executors
from data_pipeline.stages.tasks import gather_partition, make_plan, read_source, write_unit
from data_pipeline.stages.workspace import PLAN, Job

MOST_THREADS = 4
"""Of one gathering: each holds some 100 MB."""


@dataclass(frozen=True)
class Stage:
    """Tasks that may be done in any order, once all tasks of the stage before are done."""

    name: str
    doing: str
    function: Callable[..., dict[str, Any]]
    tasks: Callable[[Job], list[tuple]]
    folder: Callable[[Job], Path]
    """Where its results are kept."""
    alone: bool = False
    """One task, done by the process that asks instead of a worker."""

    def done(self, job: Job) -> Path:
        """The folder of its results."""
        return self.folder(job) / f"{self.name}-done"

    def missing(self, job: Job) -> list[int]:
        """The tasks still to do."""
        return executors.missing(self.done(job), len(self.tasks(job)))

    def results(self, job: Job) -> list[dict[str, Any]]:
        """What its tasks returned."""
        return executors.results(self.done(job), range(len(self.tasks(job))))


def _fingerprints(job: Job) -> list[tuple]:
    parts = zip(job.units, job.fingerprints, strict=True)
    return [(unit, job.settings, part) for unit, part in parts] if kinds(job.settings) else []


def _repeats(job: Job) -> list[tuple]:
    if not kinds(job.settings):
        return []
    found = ranges(sum(result["entries"] for result in FINGERPRINT.results(job)))
    return [
        (job.fingerprints, first, last, str(job.text / "repeats" / f"{number:06d}"))
        for number, (first, last) in enumerate(found)
    ]


def _reads(job: Job) -> list[tuple]:
    found = tuple(task[-1] for task in _repeats(job))
    repeats = [Repeats(number, part, found) for number, part in enumerate(job.fingerprints)]
    parts = zip(job.units, job.parts, repeats, strict=True)
    return [
        (unit, job.settings, job.tokenizer, part, again if found else None) for unit, part, again in parts
    ]


def _plans(job: Job) -> list[tuple]:
    return [(job.parts, job.settings, str(job.work / PLAN))]


def _gathers(job: Job) -> list[tuple]:
    # one pool of donors is one task, however large: the other workers' cores are free for it
    idle = executors.local_workers(job.settings) // max(1, len(job.partitions))
    threads = min(max(1, idle), MOST_THREADS) if job.settings.executor == "local" else 1
    partitions = zip(job.partitions, job.gathered, strict=True)
    return [(job.parts, job.settings, partition, folder, threads) for partition, folder in partitions]


def _writes(job: Job) -> list[tuple]:
    return [
        (
            *(folder, unit, job.builder, job.corruption, job.vocabulary.mask, job.settings),
            *(number, str(job.shards / name), job.deliver_to),
        )
        for number, (folder, unit, name) in enumerate(_shards(job))
    ]


def _shards(job: Job) -> Iterator[tuple[str, Any, str]]:
    """Partition, unit and name of every shard."""
    count = dict.fromkeys((TRAIN, HELD_OUT), 0)
    for partition, folder in zip(job.partitions, job.gathered, strict=True):
        for unit in partition.units:
            yield folder, unit, f"{partition.split}-{count[partition.split]:06d}.tar"
            count[partition.split] += 1


FINGERPRINT = Stage("fingerprint", "comparing documents", fingerprint, _fingerprints, lambda job: job.text)
READ = Stage("read", "reading and tokenizing", read_source, _reads, lambda job: job.text)
WRITE = Stage("write", "writing shards", write_unit, _writes, lambda job: job.work)
STAGES = (
    FINGERPRINT,
    Stage("repeats", "finding repetitions", find_repeats, _repeats, lambda job: job.text),
    READ,
    Stage("plan", "planning shards", make_plan, _plans, lambda job: job.work, alone=True),
    Stage("gather", "gathering documents", gather_partition, _gathers, lambda job: job.pools),
    WRITE,
)
