"""Record which source files shards were made from, and check whether these have changed since.

A file is identified by name, size and modification time; on an object store, by the ETag of its content. Copying,
unpacking or installing changes only the time: if names and sizes agree, a hash of the bytes decides. It is computed
when a preparation ends, for sources of up to HASHED bytes in total: rereading more would take too long, and there the
times decide.
"""

import hashlib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data_pipeline.errors import UserError, redact
from data_pipeline.io.decompress import reading
from data_pipeline.io.files import exists, file_sha256, is_uri, join, read_bytes
from data_pipeline.io.object_store import filesystem, with_retries
from data_pipeline.settings import DataSettings
from data_pipeline.sources.formats import SourceFile
from data_pipeline.sources.passed_over import PassedOver, is_summary
from data_pipeline.sources.read import source_files

LOG = "prepare.log.json"
"""How and from which sources a folder was made; not part of its data."""
HASHED = 1 << 30
"""Maximum bytes of sources to hash: a few seconds."""
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
"""Names of the ETag or time in fsspec's stores: hf blob_id, ftp modify, webhdfs modificationTime."""


def described_sources(settings: DataSettings, passed_over: PassedOver | None = None) -> list[list[Any]]:
    """Return name, size and time (or ETag) of each source file; the name is relative to the source's root. What
    is not read is added to `passed_over`. Raises UserError as `discover` does."""
    return _described(source_files(settings, passed_over))


def _described(files: Sequence[SourceFile]) -> list[list[Any]]:
    return [[file.name, file.size, _mark(file.uri)] for file in files]


def contents(settings: DataSettings, sources: list[list[Any]]) -> str:
    """Hash the bytes of all source files; return "" if they exceed HASHED, are not all local, or no longer match
    `sources`."""
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
    """Read the folder's log; {} if missing or damaged, and without entries that are malformed."""
    where = join(out, LOG)
    try:
        found = json.loads(read_bytes(where)) if exists(where) else {}
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    odd = {"sources": _are_sources, "stated": _are_texts, "passed_over": is_summary}
    return {key: value for key, value in found.items() if key not in odd or odd[key](value)}


def _are_sources(rows: Any) -> bool:
    return isinstance(rows, list) and all(
        isinstance(row, list) and len(row) == 3 and isinstance(row[0], str) for row in rows
    )


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def what_changed(settings: DataSettings) -> str:
    """Describe how the sources differ from those that data.out was made from; empty if they are the same, or if no
    sources were logged. Raises UserError if a source is missing."""
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


def as_stated(settings: DataSettings) -> list[str]:
    """Return data.sources as the log of a folder keeps them: without what could be secret in URIs."""
    return [redact(source) for source in settings.sources]


def stated_sources(shards: str) -> list[str]:
    """Return data.sources of the preparation that made the shards in this folder; empty if its log does not say, as one
    of an older version. Raises UserError if the folder's store cannot be read."""
    return list(noted(shards).get("stated", ()))


def source_names(shards: str) -> list[str]:
    """Return the last name of each source of the shards in this folder, without folders, credentials and queries; of a
    log of an older version, that of each file. Empty without a log."""
    log = noted(shards)
    return [name_only(source) for source in log.get("stated") or [row[0] for row in log.get("sources", ())]]


def name_only(place: str) -> str:
    """Return the last name of a path or URI, without folders, credentials and queries."""
    cleaned = re.sub(r"[?#].*$", "", redact(place)) if "://" in place else place
    return cleaned.rstrip("/").rpartition("/")[2] or "***"


def other_sources(settings: DataSettings, shards: str) -> str:
    """Name the sources of the shards in the folder `shards` if data.sources are others; empty if they are the same, or
    if nothing tells.

    The same are: those of the same words; local ones that now have the same files, by name and size or by a hash of the
    bytes, since they may have been moved; and of what is not here, as on a machine that was sent the shards alone, or
    is in a store, those of the same last names. What has changed within a source since then does not matter here."""
    log, stated = noted(shards), stated_sources(shards)
    if not log.get("sources") or not settings.sources or as_stated(settings) == stated:
        return ""
    then = [name_only(source) for source in stated]
    if all(not is_uri(source) for source in settings.sources):
        try:
            now = described_sources(settings)
        except (UserError, OSError):
            pass  # they are not here
        else:
            names = ", ".join(then or list(dict.fromkeys(row[0] for row in log["sources"])))
            return "" if _are_the_same(settings, now, log) else names
    return "" if then in ([], [name_only(source) for source in settings.sources]) else ", ".join(then)


def _are_the_same(settings: DataSettings, now: list[list[Any]], log: dict[str, Any]) -> bool:
    """Return whether the files of the sources are those of the log: by names and sizes, or, renamed, by their bytes."""
    if [row[:2] for row in now] == [row[:2] for row in log["sources"]]:
        return True
    known = log.get("contents")
    same_sizes = [row[1] for row in now] == [row[1] for row in log["sources"]]
    return bool(known) and same_sizes and known == contents(settings, now)


def _mark(uri: str) -> int | str:
    if not is_uri(uri):
        return os.stat(uri).st_mtime_ns if Path(uri).is_file() else 0
    with reading(uri):
        fs, path = filesystem(uri)
        info = with_retries(fs, lambda: fs.info(path))
    return next((str(info[key]) for key in _MARKS if info.get(key)), 0)
