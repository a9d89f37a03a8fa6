"""List the files of a source (file, folder, glob or URI) by name, with their formats.

The suffix decides the format; XML and files without a suffix are recognised by their first bytes. A folder saved by
Hugging Face `datasets` is checked against its own state.json.
"""

import json
import os
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

from data_pipeline.errors import UserError
from data_pipeline.io.decompress import COMPRESSIONS, filesystem, is_local, open_bytes, patiently, reading
from data_pipeline.sources.source_file import SourceFile

FORMATS = {
    ".txt": "text",
    ".text": "text",
    ".jsonl": "jsonl",
    ".json": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".xml": "wikipedia",
}
_EXPECTED = f"{', '.join(FORMATS)}, each also with {', '.join(COMPRESSIONS)}"
_NO_TEXT = (".html", ".htm", ".xhtml", ".warc")
_INSTEAD = dict.fromkeys(_NO_TEXT, "extract its text first, for instance with trafilatura, as .jsonl")
_SPLIT_DUMP = re.compile(r"\.xml-p\d+p\d+")  # a part of a Wikipedia dump: pages from one id to another
_WILDCARD = re.compile(r"[*?\[]")


def files_of(source: str, passed_over: list[str] | None = None) -> list[SourceFile]:
    """Return the files of one source, by name. A folder's files of unknown formats are skipped and their names added
    to `passed_over`; a file that is named, or matched by a glob, must have a known format."""
    fs, path = filesystem(source)
    ask = (lambda answer: answer()) if is_local(fs) else patiently
    web = "http" in (fs.protocol, *fs.protocol)  # for a web server, isdir would load the page
    if path.endswith("/") if web else ask(lambda: fs.isdir(path)):
        root, found, picky = path, ask(lambda: _files_below(fs, path)), False
    elif ask(lambda: fs.isfile(path)):
        root, found, picky = path.rpartition("/")[0], [path], True
    elif wildcard := _WILDCARD.search(path):
        root, picky = path[: wildcard.start()].rpartition("/")[0], True
        found = [
            f
            for match in ask(lambda: fs.glob(path))
            for f in (_files_below(fs, match) if fs.isdir(match) else [match])
        ]
    else:
        raise UserError("there is no such file or folder", where=source, remedy="check data.sources")
    root = root.rstrip("/") + "/"
    paths = _without_descriptions(fs, sorted(set(found)))
    files = [ask(partial(_source_file, fs, p, p.removeprefix(root), picky)) for p in paths]
    known = [f for f in files if f]
    if passed_over is not None:
        passed_over += [_shown(p.removeprefix(root)) for p, f in zip(paths, files, strict=True) if not f]
    if not known:
        instead = next((i for p in paths for suffix, i in _INSTEAD.items() if p.lower().endswith(suffix)), "")
        raise UserError(
            "no file to read here", where=source, expected=_EXPECTED, remedy=instead or "check data.sources"
        )
    return known


def _files_below(fs: Any, folder: str) -> list[str]:
    """List the files in `folder` recursively, without hidden ones; local symlinks are followed, cycles are not."""
    if not is_local(fs):
        below = folder.rstrip("/") + "/"
        return [p for p in fs.find(folder) if "/." not in "/" + p.removeprefix(below)]

    def walk(path: str, above: tuple[str, ...]) -> Iterator[str]:
        real = os.path.realpath(path)
        if real in above:
            return
        for entry in os.scandir(path):
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                yield from walk(entry.path, (*above, real))
            else:
                yield entry.path

    return list(walk(folder, ()))


def _without_descriptions(fs: Any, paths: list[str]) -> list[str]:
    """Return `paths` without the metadata files of a data set saved by Hugging Face `datasets`, after checking that
    the files they name exist."""
    tables = {p.rpartition("/")[0] for p in paths if p.endswith(".arrow")}
    kept = []
    for path in paths:
        folder, _, name = path.rpartition("/")
        if folder in tables and name == "state.json":
            _check_saved(fs, path, folder, paths)
        described = folder in tables or any(t.startswith(folder + "/") for t in tables)
        if not (described and name in ("state.json", "dataset_info.json", "dataset_dict.json")):
            kept.append(path)
    return kept


def _check_saved(fs: Any, state: str, folder: str, paths: list[str]) -> None:
    try:
        described = json.loads(fs.cat_file(state))
        names = [file["filename"] for file in described["_data_files"]]
        missing = [name for name in names if f"{folder}/{name}" not in paths]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"does not describe a saved data set: {error!r}", where=state, remedy="save it again"
        ) from error
    if missing:
        raise UserError(f"names {missing[0]}, which is not there", where=state, remedy="save it again")
    if described.get("_indices_data_files"):
        raise UserError(
            "the data set was saved as a selection of rows",
            where=folder,
            remedy="save it again after flatten_indices()",
        )


def _source_file(fs: Any, path: str, name: str, picky: bool) -> SourceFile | None:
    stem, suffix = os.path.splitext(name)
    compression = COMPRESSIONS.get(suffix.lower(), "")
    ending = os.path.splitext(stem if compression else name)[1].lower()
    kind = FORMATS.get(".xml" if _SPLIT_DUMP.fullmatch(ending) else ending)
    uri = path if is_local(fs) else fs.unstrip_protocol(path)
    if kind == "wikipedia" or not ending:  # recognised by their content
        with reading(uri):
            kind = _kind_inside(uri, compression, picky)
    if kind:
        if _shown(uri) != uri:  # the name is part of the document ids
            raise UserError(
                "its name is not UTF-8", where=_shown(uri), remedy="rename the file or its folder"
            )
        size = fs.size(path)
        return SourceFile(uri, name, kind, compression, size or 0, total=-1 if size is None else size)
    if picky and ending in _INSTEAD:
        raise UserError(f"{ending} is not read", where=path, expected=_EXPECTED, remedy=_INSTEAD[ending])
    if picky and ending == ".xml":
        raise UserError("is no dump of MediaWiki", where=path, expected="pages-articles.xml")
    if picky:
        raise UserError(
            "its suffix names no format", where=path, expected=_EXPECTED, remedy="rename the file"
        )
    return None


def _shown(name: str) -> str:
    """Return a file name as text; bytes that are not UTF-8 become \\udcNN."""
    return name.encode("utf-8", "backslashreplace").decode()


def _kind_inside(uri: str, compression: str, picky: bool) -> str | None:
    try:
        with open_bytes(uri, compression) as stream:
            head = stream.peek(1024)[:1024]
    except (EOFError, UserError):
        if picky or compression:  # a copy that failed, or a wrong suffix
            raise
        return None
    if head.startswith(b'<doc id="'):
        return "wikiextractor"
    if head.startswith(b'{"id": '):
        return "jsonl"  # WikiExtractor's --json
    return "wikipedia" if b"<mediawiki" in head else None
