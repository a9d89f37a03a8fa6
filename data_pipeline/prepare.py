"""Prepare a folder of shards with its index.json from sources, stage by stage, in one process or in many.

    discover -> read, per part of a source -> plan -> gather, per range of keys -> write, per shard -> finish

With duplicates dropped, two stages come before `read`: fingerprint, per part; repeats, per range of hashes.

Unfinished work is kept in the workspace's folders. A file gets its final name only when complete, so a killed run
resumes from there. A stage is a list of tasks derived from these folders alone: one process may do all stages
(`prepare`), or many processes may each do a share of one stage (`prepare_share`). The result does not depend on the
number of workers: the parts to read follow from the sources, pools and shards from the documents' keys and lengths.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from data_pipeline.errors import UserError
from data_pipeline.io.files import canonical_json, check_writable, exists, is_uri, join, write_whole
from data_pipeline.io.object_store import writable
from data_pipeline.loader.packing import original_tokens
from data_pipeline.records import ShowProgress
from data_pipeline.settings import LATER, DataSettings, required, setting_of, settings_affecting_bytes
from data_pipeline.shards.index import HELD_OUT, INDEX, TRAIN, Index, ShardEntry, write_index
from data_pipeline.shards.shard import write_shard
from data_pipeline.shards.statistics import add_up, padding_statistics, shard_statistics
from data_pipeline.sources.cleaning import FIRST_BAD, Counts, check_bad_records
from data_pipeline.sources.deduplicate import Repeats, find_repeats, fingerprint, kinds, ranges
from data_pipeline.sources.passed_over import NAMED, lines
from data_pipeline.sources.snapshot import LOG, as_stated, contents, what_changed
from data_pipeline.stages import executors
from data_pipeline.stages.executors import ALL, Share, Workers, backend_of, missing
from data_pipeline.stages.google_bert import exact_examples
from data_pipeline.stages.tasks import (
    SAMPLED_PARTS,
    deliver,
    gather_pool,
    plan_shards,
    read_source,
    ready,
    sampled_fit,
    write_range,
)
from data_pipeline.stages.workspace import PLAN, WORK, Workspace, close_workspace, kept, open_workspace
from data_pipeline.vocabulary.base import Vocabulary
from data_pipeline.vocabulary.files import load_vocabulary
from data_pipeline.vocabulary.fit import refuse_unknown, unknown_share

# List the tasks of each stage, from the folders of the workspace alone.

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


# Run all stages, or a share of one.

DISCOVER, PLAN_STAGE, FINISH = "discover", "plan", "finish"

NOISE = 0.01
"""Share of invalid and control characters above which a file is called doubtful: some in a hundred are another
encoding, a third are random bytes."""

NAMES = (DISCOVER, *(stage.name for stage in STAGES), FINISH)
"""The stages that `prepare_share` accepts, in order."""


Warn = Callable[[str], None]


def prepare(settings: DataSettings, show: ShowProgress, warn: Warn = lambda _: None) -> tuple[Index, bool]:
    """Make the shards that `settings` describe; return their index, and False if they already existed. `warn` is called
    with what a sample of the text says against the vocabulary.

    Raises UserError for unusable sources, vocabulary or settings, for text that is mostly unknown to the vocabulary,
    and for a folder that holds other data, which is left untouched."""
    started = time.monotonic()
    vocabulary = _checked(settings)
    if index := _existing(settings, vocabulary):
        return index, False
    check_writable(settings.out)
    if settings.mode == "exact":
        workspace = open_workspace(settings, vocabulary, together=False)
        counts = Counts()
        with kept(workspace):
            written = _exact(workspace, show, counts)
            documents = {TRAIN: counts.documents}
            return _finish(workspace, written, counts.as_dict(), started, documents), True
    with Workers(backend_of(settings)) as workers:
        workers.warm_up(ready)
        workspace = open_workspace(settings, vocabulary, together=False)
        with kept(workspace):
            _try_vocabulary(workspace, warn)
            for stage in STAGES:
                _do(stage, workspace, workers, show)
                if stage is READ:
                    check_bad_records(_reading(workspace), _first_bad(workspace), settings)
                    refuse_unknown(_reading(workspace), settings.vocab)
            return _finish_stages(workspace, started), True


def prepare_share(
    settings: DataSettings,
    show: ShowProgress,
    name: str,
    share: Share = ALL,
    warn: Warn = lambda _: None,
) -> str:
    """Do a share of one stage while other processes do the other shares; return a message about the outcome.
    Raises UserError as `prepare` does, and if tasks of an earlier stage are missing."""
    started = time.monotonic()
    if name not in NAMES:
        raise UserError(f"unknown {name!r}", where="--stage", expected=", ".join(NAMES))
    if settings.mode == "exact":
        raise UserError(
            "exact mode is one process", where="--stage", remedy="leave it out, or data.mode=fast"
        )
    vocabulary = _checked(settings)
    looks = name == DISCOVER  # check the sources once, not in each of many tasks
    if _existing(settings, vocabulary, with_sources=looks):
        return f"already prepared: {settings.out}"
    if looks:
        check_writable(settings.out)
    workspace = open_workspace(settings, vocabulary, together=True, afresh=looks)
    with kept(workspace):
        return _share(workspace, show, name, share, warn, started)


def _share(
    workspace: Workspace, show: ShowProgress, name: str, share: Share, warn: Warn, started: float
) -> str:
    settings = workspace.settings
    if name == DISCOVER:
        _try_vocabulary(workspace, warn)
        words = f"{len(workspace.parts)} parts to read, in the stages {', '.join(stages_of(settings))}"
        return "; ".join([words, *lines(workspace.passed_over)])
    for stage in STAGES:
        if stage.name == name:
            with Workers(backend_of(settings)) as workers:
                count = _do(stage, workspace, workers, show, share)
            return f"stage {name}: {count} of {len(stage.tasks(workspace))} tasks are of this share, and done"
        if lacking := stage.missing(workspace):
            some = ", ".join(map(str, lacking[:5])) + (", ..." if len(lacking) > 5 else "")
            raise UserError(
                f"stage {name} needs all tasks of stage {stage.name}, and {len(lacking)} are missing: {some}",
                where=stage.done(workspace),
                remedy=f"run --stage {stage.name} for these shares first",
            )
        if stage is READ and name == PLAN_STAGE:  # once, not in each of many tasks
            check_bad_records(_reading(workspace), _first_bad(workspace), settings)
            refuse_unknown(_reading(workspace), settings.vocab)
    _finish_stages(workspace, started)
    return f"prepared {settings.out}"


def stages_of(settings: DataSettings) -> list[str]:
    """Return the names of the stages after discover that these settings need."""
    return [name for name in NAMES[1:] if kinds(settings) or name not in ("fingerprint", "repeats")]


def _do(stage: Stage, workspace: Workspace, workers: Workers, show: ShowProgress, share: Share = ALL) -> int:
    """Do the share of the stage; return its number of tasks."""
    tasks = stage.tasks(workspace)
    if not tasks:
        return 0
    count = len(share.tasks(len(tasks)))
    with show(stage.doing, count) as advance:
        workers.run(stage.function, tasks, stage.done(workspace), advance, share, stage.in_process)
    return count


def _checked(settings: DataSettings) -> Vocabulary:
    if is_uri(required(settings.out, "data.out", "a folder for the shards")):
        writable(settings.out)
    return load_vocabulary(required(settings.vocab, "data.vocab", "`maskmill vocab` makes one"))


def _try_vocabulary(workspace: Workspace, warn: Warn) -> None:
    """Judge the vocabulary by a sample of the text, before hours of work. Raises UserError where it does not fit; of
    few parts, which are soon read, the beginnings may be unlike the rest, and only all of the text decides."""
    if missing(READ.done(workspace), len(workspace.parts)):
        found = sampled_fit(workspace.parts, workspace.settings, workspace.vocabulary)
        of = "the tokens of a sample of the text"
        if len(workspace.parts) >= SAMPLED_PARTS:
            refuse_unknown(found.counts.as_dict(), workspace.settings.vocab, of)
        for warning in found.warnings(of):
            warn(warning)


def _exact(workspace: Workspace, show: ShowProgress, counts: Counts) -> list[tuple[str, dict[str, Any]]]:
    """Write the shards in one process, pass by pass, in the order of google-research/bert's script; update `counts`
    with what was read."""
    settings = workspace.settings
    written: list[tuple[str, dict[str, Any]]] = []
    text: dict[str, int] = {}
    blocks = exact_examples(workspace.parts, workspace.vocabulary, settings, workspace.work, counts, text)
    a_shard = max(1, settings.shard_tokens // (settings.sequence_length * settings.block_examples))
    with show("writing instances", 0) as advance:
        while some := list(islice(blocks, a_shard)):
            path = workspace.shards / f"{TRAIN}-{len(written):06d}.tar"
            entry = write_shard(path, some)
            deliver(path, workspace.deliver_to)
            found = [
                shard_statistics(b, original_tokens(b), settings, workspace.vocabulary.mask)
                | padding_statistics(b.lengths, settings)
                for b in some
            ]
            written.append((TRAIN, {"entry": entry.as_dict(), "statistics": add_up([*found, text])}))
            text = {}  # counted once
            advance(entry.examples)
    return written


def _finish_stages(workspace: Workspace, started: float) -> Index:
    splits = [pool.split for pool in workspace.pools for _ in pool.shards]
    documents = dict.fromkeys(splits, 0)
    for pool in workspace.pools:
        documents[pool.split] += sum(shard.stop - shard.start for shard in pool.shards)
    written = list(zip(splits, WRITE.results(workspace), strict=True))
    return _finish(workspace, written, _reading(workspace), started, documents)


def _reading(workspace: Workspace) -> dict[str, Any]:
    """Return the counts of all that was read."""
    return add_up(part["counts"] for part in READ.results(workspace))


def _first_bad(workspace: Workspace) -> list[str]:
    """Return what is wrong with the first records that were skipped, in the order of the parts."""
    return [line for part in READ.results(workspace) for line in part.get("bad", [])][:FIRST_BAD]


def _left_out(workspace: Workspace, reading: dict[str, Any]) -> dict[str, Any]:
    """Return what of the sources is not read, or is doubtful, as passed_over.lines formats it: a file is doubtful if
    more than NOISE of its text's bytes were invalid or control characters."""
    found = dict(workspace.passed_over)
    if workspace.settings.mode == "exact":
        return found
    if bad := reading.get("bad_records", 0):
        found["bad_records"] = {"files": bad, "first": _first_bad(workspace)}
    sums: dict[str, list[int]] = {}
    for part, result in zip(workspace.parts, READ.results(workspace), strict=True):
        counts, of_file = result["counts"], sums.setdefault(part.name, [0, 0])
        of_file[0] += counts["invalid_characters"] + counts["control_characters"]
        of_file[1] += counts["bytes"]
    doubtful = [
        f"{name}: {odd:,} invalid or control characters in {size:,} bytes of text"
        for name, (odd, size) in sums.items()
        if odd > NOISE * size
    ]
    if doubtful:
        found["doubtful"] = {"files": len(doubtful), "first": doubtful[:NAMED]}
    return found


def _finish(
    workspace: Workspace,
    written: list[tuple[str, dict[str, Any]]],
    reading: dict[str, Any],
    started: float,
    documents: Mapping[str, int],
) -> Index:
    """Move the shards to their place, then write the index last. `written`: split and result of each shard;
    `documents`: how many each split has."""
    settings, out = workspace.settings, workspace.settings.out
    if not workspace.deliver_to:
        for path in sorted(workspace.shards.glob("[!.]*")):
            with suppress(FileNotFoundError):  # another process finishing the same preparation was faster
                path.replace(Path(out) / path.name)
    made = {name: [result for split, result in written if split == name] for name in (TRAIN, HELD_OUT)}
    statistics: dict[str, Any] = {
        "reading": reading,
        "unknown_share": round(unknown_share(reading) or 0.0, 6),
    }
    statistics |= {
        name: {**add_up(r["statistics"] for r in found), "documents": documents[name]}
        for name, found in made.items()
        if found
    }
    log = {"workers": settings.workers, "executor": settings.executor, "seconds": time.monotonic() - started}
    made_from = {
        "stated": as_stated(settings),
        "sources": workspace.sources,
        "contents": contents(settings, workspace.sources),
    }
    write_whole(
        join(out, LOG),
        canonical_json(log | made_from | {"passed_over": _left_out(workspace, reading)}, indent=1),
    )
    index = write_index(
        out,
        splits={n: [ShardEntry.from_dict(r["entry"], WORK) for r in found] for n, found in made.items()},
        settings=settings_affecting_bytes(settings),
        block_examples=settings.block_examples,
        vocabulary=workspace.vocabulary,
        statistics=statistics,
    )
    close_workspace(workspace)
    return index


def _existing(settings: DataSettings, vocabulary: Vocabulary, *, with_sources: bool = True) -> Index | None:
    """Return the existing index, or None. Raises UserError unless it was made from these settings and sources."""
    out = settings.out
    if not exists(join(out, INDEX)):
        return None
    index = Index.load(out)
    wanted = settings_affecting_bytes(settings)
    differing = [
        f"{setting_of(k)}={wanted.get(k)} (there: {v})"
        for k, v in {**LATER, **index.settings}.items()
        if wanted.get(k) != v
    ]
    if index.vocabulary.sha256 != vocabulary.sha256:
        differing.append(f"vocabulary {vocabulary.sha256[:12]} (there: {index.vocabulary.sha256[:12]})")
    if with_sources and (changed := what_changed(settings)):
        differing.append(changed)
    if differing:
        raise UserError(
            f"holds other data: {', '.join(differing)}",
            where=out,
            remedy="choose another data.out, or remove it",
        )
    return index
