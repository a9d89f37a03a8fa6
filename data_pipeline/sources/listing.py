"""List the files of a source (file, folder, glob or URI) by name, with their formats.

The suffix decides the format; XML and files without a suffix are recognised by their first bytes. Of a folder that
Hugging Face `datasets` wrote, saved_datasets.py chooses the files.
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from data_pipeline.errors import UserError, redact
from data_pipeline.io.decompress import COMPRESSIONS, filesystem, is_local, open_bytes, patiently, reading
from data_pipeline.io.files import special_file
from data_pipeline.sources.passed_over import PassedOver
from data_pipeline.sources.saved_datasets import DICT, INFO, STATE, described_files
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


def files_of(source: str, passed_over: PassedOver | None = None, split: str = "") -> list[SourceFile]:
    """Return the files of one source, by name. A folder's files of unknown formats, its devices, FIFOs and sockets are
    skipped and added to `passed_over`; a file that is named, or matched by a glob, must have a known format. `split`:
    data.split."""
    passed_over = PassedOver() if passed_over is None else passed_over
    fs, path = filesystem(source)
    ask = (lambda answer: answer()) if is_local(fs) else patiently
    web = "http" in (fs.protocol, *fs.protocol)  # for a web server, isdir would load the page
    matched = False
    if path.endswith("/") if web else ask(lambda: fs.isdir(path)):
        root, found, picky = path, ask(lambda: _files_below(fs, path)), False
    elif _is_file(fs, path):
        root, found, picky = path.rpartition("/")[0], [path], True
    elif wildcard := _WILDCARD.search(path):
        root, picky, matched = path[: wildcard.start()].rpartition("/")[0], True, True
        found = [
            f
            for match in ask(lambda: fs.glob(path))
            for f in (_files_below(fs, match) if fs.isdir(match) else [match])
        ]
    else:
        raise UserError("there is no such file or folder", where=source, remedy="check data.sources")
    root = root.rstrip("/") + "/"
    paths = _regular(fs, sorted(set(found)), root, picky, passed_over)
    if matched or not picky:
        paths = described_files(
            paths,
            lambda path, most: ask(lambda: _head(fs, path, most)),
            split=split,
            name_of=lambda folder: folder.removeprefix(root) if folder + "/" != root else redact(source),
            passed_over=passed_over,
            described=ask(lambda: _descriptions(fs, paths, root)) if matched else (),
        )
    files = [ask(partial(_source_file, fs, p, p.removeprefix(root), picky)) for p in paths]
    known = [f for f in files if f]
    passed_over.other_kinds += [
        _shown(p.removeprefix(root)) for p, f in zip(paths, files, strict=True) if not f
    ]
    if not known:
        if not found and not is_local(fs):
            _check_reachable(fs, root)
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


def _is_file(fs: Any, path: str) -> bool:
    """Return whether there is something to open under this name. Raises OSError where a store does not answer, which
    fsspec's own `isfile` takes for an absence."""
    if is_local(fs):
        return fs.isfile(path) or bool(special_file(path))
    try:
        return patiently(lambda: fs.info(path))["type"] == "file"
    except FileNotFoundError:
        return False


def _check_reachable(fs: Any, folder: str) -> None:
    """Raise OSError if the store does not answer: fsspec's listings take that for an empty folder."""
    with suppress(FileNotFoundError):
        patiently(lambda: fs.ls(folder, detail=False))


def _regular(fs: Any, paths: list[str], root: str, picky: bool, passed_over: PassedOver) -> list[str]:
    """Return `paths` without devices, FIFOs and sockets: opening one may wait for ever, or never end."""
    if not is_local(fs):
        return paths
    kept = []
    for path in paths:
        if not (kind := special_file(path)):
            kept.append(path)
        elif picky:
            raise UserError(
                f"is {kind}", where=_shown(path), expected="a file or folder", remedy="check data.sources"
            )
        else:
            passed_over.special.append(_shown(path.removeprefix(root)))
    return kept


def _descriptions(fs: Any, paths: list[str], root: str) -> list[str]:
    """List the descriptions of data sets that lie in the folders of Arrow files that a glob has matched, or between
    these and its root, and that it has not matched."""
    folders: set[str] = set()
    for path in paths:
        folder = path.rpartition("/")[0] if path.endswith(".arrow") else ""
        while len(folder) >= len(root.rstrip("/")) and folder and folder not in folders:
            folders.add(folder)
            folder = folder.rpartition("/")[0]
    candidates = [f"{folder}/{name}" for folder in sorted(folders) for name in (DICT, STATE, INFO)]
    return [c for c in candidates if c not in paths and fs.isfile(c)]


def _head(fs: Any, path: str, most: int) -> bytes:
    with fs.open(path, "rb") as file:
        return bytes(file.read(most))


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
