"""Files, folders, globs and URIs in, documents with stable ids out.

`discover` lists the units of work in an order that depends on nothing but the files' names; `read` streams the
documents of one. Formats go by suffix: .txt (.text), .jsonl (.json, .ndjson), .parquet, each also .gz and .zst.

A document's id is `path:record`. The path is relative to the source's root (of a folder: itself; of a glob: the
folders before its first wildcard; of a file: its folder), so that neither the working directory nor where the data
lie matters. The record is the id field or, without one, the line on which the document begins, counted from 1
(Parquet: its row). Where two sources hold the same relative path, the path in the n-th source becomes `#n/path`.

Bad text never stops a run: hygiene.py states the rules and what is counted. A record that cannot be read does
(broken JSON, no text field, a file that is cut off): leaving it out silently would be worse.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from data_pipeline.bytestream import COMPRESSIONS, filesystem, is_local, reading
from data_pipeline.counts import Counts
from data_pipeline.errors import UserError
from data_pipeline.formats import SourceFile, records
from data_pipeline.hygiene import clean, utf8_size
from data_pipeline.records import Document
from data_pipeline.settings import DataSettings

FORMATS = {
    ".txt": "text",
    ".text": "text",
    ".jsonl": "jsonl",
    ".json": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}
UNIT_BYTES = 64 << 20
"""A plain local file larger than this is shared out among workers in pieces of this size."""
STRIPE_BYTES = 16 << 20
"""A larger compressed file is shared out by records, a unit for each so many bytes: every unit decompresses all of it,
at some hundred MB/s, and does the rest of the work, twenty times slower, for its own records only."""
BATCH_BYTES = 4 << 20

_EXPECTED = f"{', '.join(FORMATS)}, each also with {', '.join(COMPRESSIONS)}"
_WILDCARD = re.compile(r"[*?\[]")


def discover(settings: DataSettings, run: Callable[..., Iterable[Any]] = map) -> list[SourceFile]:
    """All units of `settings.sources`: sources in the order given, files by name, pieces from front to back.

    Large plain files are read once to count their lines; `run` may spread that (`executor.map`).
    Raises UserError for a source that is missing, empty, of an unknown kind, or reached twice."""
    return units_of(source_files(settings), settings, run)


def units_of(
    files: list[SourceFile], settings: DataSettings, run: Callable[..., Iterable[Any]] = map
) -> list[SourceFile]:
    """The files cut into units, as `discover` gives them."""
    units: list[SourceFile] = []
    for file in files:
        with reading(file.uri):
            units += _pieces(file, settings, run)
    return units


def source_files(settings: DataSettings) -> list[SourceFile]:
    """The files that `discover` finds, whole: looked up, not read."""
    if not settings.sources:
        raise UserError(
            "there is nothing to read", where="data.sources", remedy="name files, folders or globs"
        )
    names: dict[str, str] = {}
    uris: set[str] = set()
    found: list[SourceFile] = []
    for number, source in enumerate(settings.sources, 1):
        with reading(source):
            files = _expand(source)
        for file in files:
            if file.uri in uris:
                raise UserError(
                    "two sources hold this file", where=file.uri, remedy="name it once in data.sources"
                )
            name = f"#{number}/{file.name}" if file.name in names else file.name
            if name in names:
                raise UserError(
                    f"{names[name]} gives the same document ids", where=file.uri, remedy="rename one"
                )
            names[name] = file.uri
            uris.add(file.uri)
            found.append(replace(file, name=name))
    return found


def read(file: SourceFile, settings: DataSettings, counts: Counts) -> Iterator[Document]:
    """The documents of one unit, cleaned; `counts` is added to. Documents without a visible character are left out.
    Raises UserError, with file and line, for a record or a file that cannot be read."""
    with reading(file.uri):
        for record, text in records(file, settings, counts):
            cleaned = clean(text, counts)
            if not cleaned or cleaned.isspace():
                counts.empty_documents += 1
                continue
            counts.documents += 1
            counts.bytes += utf8_size(cleaned)
            yield Document(f"{file.name}:{record}", cleaned)


def _expand(source: str) -> list[SourceFile]:
    """The files of one source, by name. A folder's files of other kinds are passed over; a file that is named,
    or found by a glob, has to be of a known kind."""
    fs, path = filesystem(source)
    web = "http" in (fs.protocol, *fs.protocol)  # asking a web server for a folder means loading the page
    if path.endswith("/") if web else fs.isdir(path):
        root, found, picky = path, _files_below(fs, path), False
    elif fs.isfile(path):
        root, found, picky = path.rpartition("/")[0], [path], True
    elif wildcard := _WILDCARD.search(path):
        root, picky = path[: wildcard.start()].rpartition("/")[0], True
        found = [
            f for match in fs.glob(path) for f in (_files_below(fs, match) if fs.isdir(match) else [match])
        ]
    else:
        raise UserError("there is no such file or folder", where=source, remedy="check data.sources")
    root = root.rstrip("/") + "/"
    files = [_source_file(fs, p, p.removeprefix(root), picky) for p in sorted(set(found))]
    known = [f for f in files if f]
    if not known:
        raise UserError("no file to read here", where=source, expected=_EXPECTED, remedy="check data.sources")
    return known


def _files_below(fs: Any, folder: str) -> list[str]:
    """Files in `folder` and its folders, hidden ones left out; local links are followed, but never in a circle."""
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


def _source_file(fs: Any, path: str, name: str, picky: bool) -> SourceFile | None:
    stem, suffix = os.path.splitext(name)
    compression = COMPRESSIONS.get(suffix.lower(), "")
    kind = FORMATS.get(os.path.splitext(stem if compression else name)[1].lower())
    if kind:
        uri = path if is_local(fs) else fs.unstrip_protocol(path)
        return SourceFile(uri, name, kind, compression, fs.size(path) or 0)
    if picky:
        raise UserError(
            "its suffix names no format", where=path, expected=_EXPECTED, remedy="rename the file"
        )
    return None


def _pieces(file: SourceFile, settings: DataSettings, run: Callable[..., Iterable[Any]]) -> list[SourceFile]:
    whole = file.format == "text" and settings.documents == "file"
    if file.compression and file.format != "parquet" and not whole:
        stripes = -(-file.size // STRIPE_BYTES)
        return [replace(file, stripe=number, stripes=stripes) for number in range(stripes)]
    if file.compression or file.size <= UNIT_BYTES or whole or not is_local(filesystem(file.uri)[0]):
        return [file]
    if file.format == "parquet":
        from data_pipeline import parquet

        return [
            replace(file, start=start, stop=stop, before=rows, size=size)
            for start, stop, rows, size in parquet.units(file.uri, UNIT_BYTES)
        ]
    starts = range(0, file.size, UNIT_BYTES)
    sizes = [min(UNIT_BYTES, file.size - start) for start in starts]
    before, pieces = 0, []
    for start, size, feeds in zip(
        starts, sizes, run(_line_feeds, [file.uri] * len(sizes), starts, sizes), strict=True
    ):
        pieces.append(replace(file, start=start, stop=start + size, before=before, size=size))
        before += feeds
    return pieces


def _line_feeds(path: str, start: int, size: int) -> int:
    feeds = 0
    with open(path, "rb") as stream:
        stream.seek(start)
        while size > 0 and (data := stream.read(min(size, BATCH_BYTES))):
            feeds += data.count(b"\n")
            size -= len(data)
    return feeds
