"""Record what text a preparation is made from, and check whether finished shards are still of it.

A file is known by its name, its size and the time of its last change; on a store by the mark (ETag) that the store
gives its content. Copying, unpacking or installing changes the time and nothing else: where names and sizes agree, a
hash of the bytes decides. It is taken when a preparation ends, of sources up to HASHED bytes in all: reading more of
them once again would take too long, and there the times decide.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data_pipeline.errors import UserError
from data_pipeline.io.decompress import filesystem, patiently, reading
from data_pipeline.io.files import exists, file_sha256, is_uri, join, read_bytes
from data_pipeline.settings import DataSettings
from data_pipeline.sources.discover import source_files
from data_pipeline.sources.source_file import SourceFile

LOG = "prepare.log.json"
"""How and from what a folder was made; no part of its data."""
HASHED = 1 << 30
"""Bytes of sources: some seconds."""
NAMED = 5
"""Skipped files that are named; the others are counted."""
_MARKS = (
    *(
        "ETag",
        "etag",
        "blob_id",
        "LastModified",
        "Last-Modified",
        "last_modified",
        "updated",
        "mtime",
        "created",
    ),
    *("modify", "modificationTime"),
)
"""What fsspec's stores call it: hf blob_id, ftp modify, webhdfs modificationTime."""


def described_sources(settings: DataSettings, passed_over: list[str] | None = None) -> list[list[Any]]:
    """Name, size and time (or mark) of each source file, without the folder that it lies in. To `passed_over` the names
    of files of other kinds are added. Raises UserError, as `discover`."""
    return _described(source_files(settings, passed_over))


def _described(files: Sequence[SourceFile]) -> list[list[Any]]:
    return [[file.name, file.size, _mark(file.uri)] for file in files]


def summary(passed_over: Sequence[str]) -> dict[str, Any]:
    """How many files were skipped, and the first of them."""
    return {"files": len(passed_over), "first": list(passed_over[:NAMED])}


def in_words(passed_over: dict[str, Any]) -> str:
    """The same for people; empty where none was."""
    count, first = passed_over.get("files", 0), passed_over.get("first", [])
    if not count:
        return ""
    names = ", ".join(first) + (", ..." if count > len(first) else "")
    return f"skipped {count:,} file{'s' if count > 1 else ''} of other kinds: {names}"


def contents(settings: DataSettings, sources: list[list[Any]]) -> str:
    """A hash of the bytes of all source files; empty where they are more than HASHED, not all on this machine's disks,
    or no longer those that `sources` describes."""
    if sum(size for _, size, _ in sources) > HASHED:
        return ""
    try:
        files = source_files(settings)
        if any(is_uri(f.uri) for f in files) or _described(files) != sources:
            return ""
        digest = hashlib.sha256()
        for file in files:
            digest.update(bytes.fromhex(file_sha256(file.uri)))
    except (UserError, OSError):
        return ""
    return digest.hexdigest()


def noted(out: str) -> dict[str, Any]:
    """What the folder's log says; empty where there is none, and of what in it is torn or not as it was written."""
    where = join(out, LOG)
    try:
        found = json.loads(read_bytes(where)) if exists(where) else {}
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    odd = {"sources": _are_sources, "passed_over": _is_summary}
    return {key: value for key, value in found.items() if key not in odd or odd[key](value)}


def _are_sources(rows: Any) -> bool:
    return isinstance(rows, list) and all(
        isinstance(row, list) and len(row) == 3 and isinstance(row[0], str) for row in rows
    )


def _is_summary(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("files"), int)
        and isinstance(names := value.get("first"), list)
        and all(isinstance(name, str) for name in names)
    )


def what_changed(settings: DataSettings) -> str:
    """In what the sources differ from those that data.out was made from; empty where they are the same, or where
    nothing was noted. Raises UserError where they cannot be found."""
    log = noted(settings.out)
    then, now = log.get("sources"), described_sources(settings)
    if then is None or then == now:
        return ""
    known = log.get("contents")
    if known and [row[:2] for row in then] == [row[:2] for row in now] and known == contents(settings, now):
        return ""
    before, after = ({name: facts for name, *facts in rows} for rows in (then, now))
    differing = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    which = f" (the first that differs: {differing[0]})" if differing else ""
    return f"its sources had other names, sizes or times{which}"


def _mark(uri: str) -> int | str:
    if not is_uri(uri):
        return os.stat(uri).st_mtime_ns if Path(uri).is_file() else 0
    with reading(uri):
        fs, path = filesystem(uri)
        info = patiently(lambda: fs.info(path))
    return next((str(info[key]) for key in _MARKS if info.get(key)), 0)
