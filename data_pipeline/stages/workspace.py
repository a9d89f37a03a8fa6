"""Open the folders of a preparation: check that they belong to it, and find what its stages wrote.

    WORK        unfinished work: OUT/.work, or a folder of its own in data.work; removed at the end
    OUT/.work   finished shards, until all are there; an OUT on an object store gets each as soon as it is complete
    TEXT        tokenized text: WORK, or a folder of its own in data.tokens, which is kept for other preparations

The folders hold everything that a stage needs, so any process that sees them can run any share of a stage.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from data_pipeline.errors import UserError
from data_pipeline.io.files import (
    canonical_json,
    exists,
    is_uri,
    join,
    read_bytes,
    refuse_links,
    remove_partial_files,
    write_once,
    write_whole,
    writing,
)
from data_pipeline.io.object_store import object_names, remove_object
from data_pipeline.masking.masker import Corruption, corruption_of
from data_pipeline.sequences.base import SequenceBuilder
from data_pipeline.sequences.registry import builder_of
from data_pipeline.settings import DataSettings, settings_affecting_bytes, token_values
from data_pipeline.shards.index import INDEX
from data_pipeline.sources.formats import SourceFile
from data_pipeline.sources.passed_over import PassedOver
from data_pipeline.sources.read import discover
from data_pipeline.sources.snapshot import described_sources
from data_pipeline.stages.corpus import DocumentPool, parsed_pools
from data_pipeline.vocabulary.base import Vocabulary

FORMAT = 3
"""Version of the files in these folders and of how sequences are cut; unfinished work of other versions is refused."""
TEXT_FORMAT = 2
"""Version of the tokenized text in data.tokens; that of other versions is left alone."""
WORK, SHARDS, NOTE, PARTS, PLAN = ".work", "shards", "identity.json", "parts.json", "plan.json"


@dataclass(frozen=True)
class Workspace:
    """The folders and sources of one preparation."""

    settings: DataSettings
    builder: SequenceBuilder
    corruption: Corruption
    vocabulary: Vocabulary
    sources: list[list[Any]]
    """Name, size and time of each source file."""
    passed_over: dict[str, Any]
    """What of the sources' folders is not read, as `PassedOver.summary`."""
    work: Path
    text: Path

    @property
    def tokenizer(self) -> str:
        """The vocabulary as a file that workers read. Its name changes with its content: a worker that outlives this
        preparation, as Dask's do, keeps what it has loaded by name."""
        return str(self.work / f"tokenizer-{self.vocabulary.sha256[:16]}.json")

    @property
    def shards(self) -> Path:
        """Folder of finished shards that are not delivered yet."""
        return (self.work if is_uri(self.settings.out) else Path(self.settings.out) / WORK) / SHARDS

    @property
    def deliver_to(self) -> str:
        """The URI to which each writer moves its shard; empty: shards stay in `shards`."""
        return self.settings.out if is_uri(self.settings.out) else ""

    @cached_property
    def parts(self) -> list[SourceFile]:
        """The sources cut into parts. The first process that asks cuts them, for all."""
        path = self.text / PARTS
        if not path.is_file():
            parts = discover(self.settings)
            write_once(path, canonical_json([asdict(part) for part in parts]))
        return [SourceFile(**fields) for fields in json.loads(path.read_bytes())]

    @property
    def tokenized(self) -> list[str]:
        """The folders of the tokenized parts."""
        return [str(self.text / "read" / f"{number:06d}") for number in range(len(self.parts))]

    @property
    def fingerprints(self) -> list[str]:
        """The folders of the hashes of each part's text."""
        return [str(self.text / "fingerprints" / f"{number:06d}") for number in range(len(self.parts))]

    @cached_property
    def pools(self) -> list[DocumentPool]:
        """The plan."""
        return parsed_pools((self.work / PLAN).read_bytes())

    @cached_property
    def gathered_folder(self) -> Path:
        """The folder of the gathered pools, shared by preparations that gather the same documents."""
        borders = [[p.split, p.first_key, p.last_key, p.sources, p.takes_held_out] for p in self.pools]
        drawn = [self.settings.held_out, self.settings.seed] if self.settings.held_out else []
        drawn += sorted({pool.held_out_limit for pool in self.pools} - {0})
        return self.text / f"gathered-{_short_hash([drawn, borders])}"

    @property
    def gathered(self) -> list[str]:
        """The folder of each pool."""
        return [str(self.gathered_folder / f"{number:06d}") for number in range(len(self.pools))]


def close_workspace(workspace: Workspace) -> None:
    """Remove what is not needed once index.json is written."""
    shutil.rmtree(workspace.work, ignore_errors=True)
    if is_uri(workspace.settings.out):
        remove_object(join(join(workspace.settings.out, WORK), NOTE))
    else:
        shutil.rmtree(Path(workspace.settings.out) / WORK, ignore_errors=True)
    if workspace.settings.tokens:
        for folder in (workspace.text, workspace.text / "read", workspace.gathered_folder):
            remove_partial_files(folder)


@contextmanager
def kept(workspace: Workspace) -> Iterator[None]:
    """Raise UserError where the preparation fails since its folder was removed meanwhile: what then misses a file would
    blame that file."""
    try:
        yield
    except (UserError, OSError) as error:
        if (workspace.work / NOTE).is_file() or exists(join(workspace.settings.out, INDEX)):
            raise
        raise UserError(
            "was removed while the preparation wrote to it",
            where=workspace.work,
            expected="a folder that stays until index.json is written",
            remedy="run `maskmill prepare` again",
        ) from error


def open_workspace(
    settings: DataSettings, vocabulary: Vocabulary, *, together: bool, afresh: bool = False
) -> Workspace:
    """Open the preparation that the settings describe; create or reuse its folders. Alone, it removes unfinished
    work of other settings; together with other processes, that is a UserError. So is an `out` that holds anything
    else. Together, the sources are those that the first process found, unless they are to be looked up `afresh`."""
    builder, corruption = builder_of(settings, vocabulary), corruption_of(settings, vocabulary)
    work = _work_folder(settings)
    sources, passed_over = _found_sources(work, settings, afresh=afresh or not together)
    identity = {
        "settings": settings_affecting_bytes(settings),
        "vocabulary": vocabulary.sha256,
        "sources": sources,
    }
    note = canonical_json(
        {
            "format": FORMAT,
            "identity": identity,
            "data_sources": _sought(settings),
            "skipped_files": passed_over,
        }
    )
    if is_uri(settings.out):
        _claim_store(settings.out, identity, note)
    else:
        _claim_folder(Path(settings.out), identity, note, together=together)
    _claim(work, identity, note, together=together)
    text = work
    if settings.tokens:
        decided = [TEXT_FORMAT, token_values(settings), vocabulary.sha256, sources]
        text = Path(settings.tokens) / _short_hash(decided)
        with writing(text):
            text.mkdir(parents=True, exist_ok=True)
        write_once(text / NOTE, canonical_json(decided))
    workspace = Workspace(settings, builder, corruption, vocabulary, sources, passed_over, work, text)
    with writing(workspace.shards):
        workspace.shards.mkdir(parents=True, exist_ok=True)
    write_whole(workspace.tokenizer, vocabulary.json.encode())
    return workspace


def _found_sources(
    work: Path, settings: DataSettings, *, afresh: bool
) -> tuple[list[list[Any]], dict[str, Any]]:
    """Return the source files and what is skipped; unless `afresh`, what the first of several processes found, so
    that only one has to look."""
    note = None if afresh else _note(work)
    if note and note["data_sources"] == _sought(settings):
        return note["identity"]["sources"], note["skipped_files"]
    passed_over = PassedOver()
    return described_sources(settings, passed_over), passed_over.summary()


def _sought(settings: DataSettings) -> list[str]:
    """Return what decides which files are listed."""
    return [*settings.sources, *([f"split={settings.split}"] if settings.split else [])]


def _work_folder(settings: DataSettings) -> Path:
    if settings.work:
        out = settings.out if is_uri(settings.out) else os.path.abspath(settings.out)
        return Path(settings.work) / _short_hash(out)
    if is_uri(settings.out):
        raise UserError(
            f"is empty, and data.out={settings.out} cannot hold unfinished work",
            where="data.work",
            expected="a folder that all workers see",
        )
    return Path(settings.out) / WORK


def _claim_folder(out: Path, identity: dict[str, Any], note: bytes, *, together: bool) -> None:
    refuse_links(out, (WORK, f"{WORK}/{SHARDS}"))
    if not _is_ours(out / WORK, identity) and out.exists() and any(p.name != WORK for p in out.iterdir()):
        raise UserError(
            "holds other files", where=out, expected="a new or empty folder", remedy="choose another"
        )
    _claim(out / WORK, identity, note, together=together)


def _claim_store(out: str, identity: dict[str, Any], note: bytes) -> None:
    """Claim an object store folder, like a local one. Objects are never removed for other settings: a store has no
    lock, and remaking them is expensive."""
    where = join(join(out, WORK), NOTE)
    try:
        there = _parsed(read_bytes(where), out)
    except FileNotFoundError:
        if object_names(out):
            raise UserError(
                "holds other files", where=out, expected="a new or empty folder", remedy="choose another"
            ) from None
        write_whole(where, note)
        return
    if canonical_json(there["identity"]) != canonical_json(identity):
        raise _others_work(out)


def _claim(folder: Path, identity: dict[str, Any], note: bytes, *, together: bool) -> None:
    if not _is_ours(folder, identity) and not together:
        shutil.rmtree(folder, ignore_errors=True)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_once(folder / NOTE, note)
    if not _is_ours(folder, identity):
        raise _others_work(folder)


def _others_work(where: object) -> UserError:
    return UserError(
        "holds unfinished work of other settings or sources",
        where=where,
        remedy="finish or remove it, or choose another data.out",
    )


def _note(folder: Path) -> dict[str, Any] | None:
    try:
        return _parsed((folder / NOTE).read_bytes(), folder)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _parsed(data: bytes, where: object) -> dict[str, Any]:
    """Parse identity.json. Raises UserError if another version of this program wrote it."""
    note = json.loads(data)
    if note.get("format") != FORMAT:
        raise UserError(
            "holds unfinished work of another version of Maskmill",
            where=where,
            remedy="finish it with that version, or remove the folder",
        )
    return note


def _is_ours(folder: Path, identity: dict[str, Any]) -> bool:
    note = _note(folder)
    return note is not None and canonical_json(note["identity"]) == canonical_json(identity)


def _short_hash(value: Sequence[Any] | str) -> str:
    return hashlib.sha256(canonical_json(value)).hexdigest()[:16]
