"""List the tasks of each stage of a preparation, from its folders alone."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_pipeline.shards.index import HELD_OUT, TRAIN
from data_pipeline.sources.deduplicate import Repeats, find_repeats, fingerprint, kinds, ranges
from data_pipeline.stages import executors
from data_pipeline.stages.tasks import gather_pool, plan_shards, read_source, write_range
from data_pipeline.stages.workspace import PLAN, Workspace

MAX_GATHER_THREADS = 4
"""Per gathering task: each holds some 100 MB."""


@dataclass(frozen=True)
class Stage:
    """A set of tasks that may run in any order, once all tasks of the previous stage are done."""

    name: str
    doing: str
    function: Callable[..., dict[str, Any]]
    tasks: Callable[[Workspace], list[tuple]]
    folder: Callable[[Workspace], Path]
    """Folder of its results."""
    in_process: bool = False
    """Run by the calling process instead of workers."""

    def done(self, workspace: Workspace) -> Path:
        """Return the folder of its results."""
        return self.folder(workspace) / f"{self.name}-done"

    def missing(self, workspace: Workspace) -> list[int]:
        """List the tasks still to do."""
        return executors.missing(self.done(workspace), len(self.tasks(workspace)))

    def results(self, workspace: Workspace) -> list[dict[str, Any]]:
        """Return the results of its tasks."""
        return executors.results(self.done(workspace), range(len(self.tasks(workspace))))


def _fingerprints(workspace: Workspace) -> list[tuple]:
    parts = zip(workspace.parts, workspace.fingerprints, strict=True)
    return [(part, workspace.settings, out) for part, out in parts] if kinds(workspace.settings) else []


def _repeats(workspace: Workspace) -> list[tuple]:
    if not kinds(workspace.settings):
        return []
    found = ranges(sum(result["entries"] for result in FINGERPRINT.results(workspace)))
    return [
        (workspace.fingerprints, first, last, str(workspace.text / "repeats" / f"{number:06d}"))
        for number, (first, last) in enumerate(found)
    ]


def _reads(workspace: Workspace) -> list[tuple]:
    found = tuple(task[-1] for task in _repeats(workspace))
    repeats = [Repeats(number, part, found) for number, part in enumerate(workspace.fingerprints)]
    parts = zip(workspace.parts, workspace.tokenized, repeats, strict=True)
    return [
        (part, workspace.settings, workspace.tokenizer, out, again if found else None)
        for part, out, again in parts
    ]


def _plans(workspace: Workspace) -> list[tuple]:
    return [(workspace.tokenized, workspace.settings, str(workspace.work / PLAN))]


def _gathers(workspace: Workspace) -> list[tuple]:
    # a pool is one task at any size: the other workers' cores are free for it
    idle = executors.local_workers(workspace.settings) // max(1, len(workspace.pools))
    threads = min(max(1, idle), MAX_GATHER_THREADS) if workspace.settings.executor == "local" else 1
    pools = zip(workspace.pools, workspace.gathered, strict=True)
    return [(workspace.tokenized, workspace.settings, pool, folder, threads) for pool, folder in pools]


def _writes(workspace: Workspace) -> list[tuple]:
    return [
        (
            *(
                folder,
                chosen,
                workspace.builder,
                workspace.corruption,
                workspace.vocabulary.mask,
                workspace.settings,
            ),
            *(number, str(workspace.shards / name), workspace.deliver_to),
        )
        for number, (folder, chosen, name) in enumerate(_shards(workspace))
    ]


def _shards(workspace: Workspace) -> Iterator[tuple[str, Any, str]]:
    """Yield the folder of the pool, the range of its documents, and the name of every shard."""
    count = dict.fromkeys((TRAIN, HELD_OUT), 0)
    for pool, folder in zip(workspace.pools, workspace.gathered, strict=True):
        for chosen in pool.shards:
            yield folder, chosen, f"{pool.split}-{count[pool.split]:06d}.tar"
            count[pool.split] += 1


FINGERPRINT = Stage(
    "fingerprint", "comparing documents", fingerprint, _fingerprints, lambda workspace: workspace.text
)
READ = Stage("read", "reading and tokenizing", read_source, _reads, lambda workspace: workspace.text)
WRITE = Stage("write", "writing shards", write_range, _writes, lambda workspace: workspace.work)
STAGES = (
    FINGERPRINT,
    Stage("repeats", "finding repetitions", find_repeats, _repeats, lambda workspace: workspace.text),
    READ,
    Stage("plan", "planning shards", plan_shards, _plans, lambda workspace: workspace.work, in_process=True),
    Stage(
        "gather", "gathering documents", gather_pool, _gathers, lambda workspace: workspace.gathered_folder
    ),
    WRITE,
)
