"""Read documents with stable ids from files, folders, globs and URIs.

`discover` lists the parts of the sources in an order that depends on nothing but the files' names; `read` streams the
documents of one. Formats go by suffix: .txt (.text), .jsonl (.json, .ndjson), .parquet, .arrow, .xml (Wikipedia's
dumps), each also .gz, .bz2, .xz and .zst. WikiExtractor's files, which have no suffix, are known by their content. A
folder that Hugging Face `datasets` saved is read as its state.json says, all splits of one that holds several.

A document's id is `path:record`. The path is relative to the source's root (of a folder: itself; of a glob: the
folders before its first wildcard; of a file: its folder), so that neither the working directory nor where the data
are matters. The record is the id field or, without one, the line on which the document begins, counted from 1 (tables:
its row), or the page's id where the text is Wikipedia's. Where two sources hold the same relative path, the path in the
n-th source becomes `#n/path`.

A document of more than a million bytes is read in passages, so that memory stays small however long it is.

Bad text never stops a run: cleaning.py states the rules and what is counted. A record that cannot be read does
(broken JSON, no text field, a file that is cut off): leaving it out silently would be worse.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from data_pipeline.errors import UserError
from data_pipeline.io.decompress import filesystem, is_local, reading
from data_pipeline.records import Document
from data_pipeline.settings import DataSettings, language_of
from data_pipeline.sources.cleaning import clean, cleaned, utf8_size
from data_pipeline.sources.listing import files_of
from data_pipeline.sources.read import records
from data_pipeline.sources.read_counts import Counts
from data_pipeline.sources.source_file import SourceFile

PART_BYTES = 32 << 20
"""A plain local file larger than this is shared out among workers in pieces of this size."""
STRIPE_BYTES = 16 << 20
"""A larger compressed file is shared out by records, a part for each so many bytes: every part decompresses all of it,
at some hundred MB/s, and does the rest of the work, twenty times slower, for its own records only."""
MAX_STRIPES = 64
"""Parts that share one file in this way, at most: reading it so often would take longer than the rest."""
MAX_SOURCES = 1 << 16
BATCH_BYTES = 1 << 20
LINE_FEED = 10


def discover(settings: DataSettings, run: Callable[..., Iterable[Any]] = map) -> list[SourceFile]:
    """All parts of `settings.sources`: sources in the order given, files by name, those of a file from front to back.

    Large plain files are read once to count their lines; `run` may spread that (`executor.map`).
    Raises UserError for a source that is missing, empty, of an unknown kind, or reached twice."""
    return parts_of(source_files(settings), settings, run)


def parts_of(
    files: list[SourceFile], settings: DataSettings, run: Callable[..., Iterable[Any]] = map
) -> list[SourceFile]:
    """The files cut into parts, as `discover` gives them."""
    parts: list[SourceFile] = []
    for file in files:
        with reading(file.uri):
            parts += _parts_of_file(file, settings, run)
    return parts


def source_files(settings: DataSettings, passed_over: list[str] | None = None) -> list[SourceFile]:
    """The files that `discover` finds, whole: looked up, not read. To `passed_over` the names are added of what folders
    hold beside them, files of other kinds."""
    if not settings.sources:
        raise UserError(
            "there is nothing to read", where="data.sources", remedy="name files, folders or globs"
        )
    if len(settings.sources) > MAX_SOURCES:
        raise UserError(f"more than {MAX_SOURCES} sources", where="data.sources", remedy="name folders")
    language_of(settings, 0)
    names: dict[str, str] = {}
    uris: set[str] = set()
    found: list[SourceFile] = []
    for number, source in enumerate(settings.sources, 1):
        with reading(source):
            files = files_of(source, passed_over)
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
            found.append(replace(file, name=name, source=number - 1))
    return found


def read(file: SourceFile, settings: DataSettings, counts: Counts) -> Iterator[Document]:
    """The documents of one part, cleaned; `counts` is added to. Documents without a visible character are left out.
    Raises UserError, with file and line, for a record or a file that cannot be read."""
    with reading(file.uri), _unchanged(file):
        for record, text, more in records(file, settings, counts):
            passages: Iterator[str] = iter(())
            if more:
                passages = _measured(at_white_space(cleaned(chain([text], more), counts)), counts, file.uri)
                text = with_visible(passages)
            else:
                text = clean(text, counts)
                counts.bytes += utf8_size(text)
            if not text or text.isspace():
                counts.empty_documents += 1
                counts.bytes -= utf8_size(text)
                continue
            counts.documents += 1
            yield Document(f"{file.name}:{record}", text, file.source, passages if more else ())
            for _ in passages:  # what nobody read still counts, and the next record comes after it
                pass


@contextmanager
def _unchanged(file: SourceFile) -> Iterator[None]:
    """Raises UserError where a local file has another size, before or after it is read, than when it was found: some
    of its records would be missing, or be two parts'."""
    local = file.total >= 0 and is_local(filesystem(file.uri)[0])

    def check() -> None:
        if local and (size := os.path.getsize(file.uri)) != file.total:
            raise UserError(
                f"has changed: {size} bytes, and {file.total} before",
                where=file.uri,
                remedy="run it again when no program writes to it",
            )

    check()
    yield
    check()


def at_white_space(passages: Iterable[str]) -> Iterator[str]:
    """The same text, cut after white space where a passage has any, so that no word is cut in two."""
    rest = ""
    for passage in passages:
        text = rest + passage
        end = max(text.rfind("\n"), text.rfind(" ")) + 1 or len(text)
        rest = text[end:]
        yield text[:end]
    yield rest


def _measured(passages: Iterable[str], counts: Counts, uri: str) -> Iterator[str]:
    with reading(uri):  # they are read by others, while `read` waits
        for passage in passages:
            counts.bytes += utf8_size(passage)
            yield passage


def with_visible(passages: Iterator[str]) -> str:
    """The passages up to the first that holds a visible character, as one."""
    found = []
    for passage in passages:
        found.append(passage)
        if passage and not passage.isspace():
            break
    return "".join(found)


def _parts_of_file(
    file: SourceFile, settings: DataSettings, run: Callable[..., Iterable[Any]]
) -> list[SourceFile]:
    whole = file.format == "text" and settings.documents == "file"
    local = is_local(filesystem(file.uri)[0])
    if file.format == "wikipedia" and file.compression == "bzip2" and local and file.size > STRIPE_BYTES:
        from data_pipeline.sources.formats.wikipedia import bzip2_borders

        if borders := bzip2_borders(file.uri, STRIPE_BYTES):
            return _between(file, [0, *borders])
    if (file.compression or file.format == "arrow") and file.format != "parquet" and not whole:
        stripes = -(-file.size // (STRIPE_BYTES if file.compression else PART_BYTES))
        stripes = min(max(stripes, 1), MAX_STRIPES)
        return [replace(file, stripe=number, stripes=stripes) for number in range(stripes)]
    if file.compression or file.size <= PART_BYTES or whole or not local:
        return [file]
    if file.format == "parquet":
        from data_pipeline.sources.formats import tables

        return [
            replace(file, start=start, stop=stop, before=rows, size=size)
            for start, stop, rows, size in tables.parquet_parts(file, PART_BYTES)
        ]
    starts = range(0, file.size, PART_BYTES)
    if file.format == "wikipedia":
        return _between(file, list(starts))
    sizes = [min(PART_BYTES, file.size - start) for start in starts]
    before, pieces = 0, []
    for start, size, feeds in zip(
        starts, sizes, run(_line_feeds, [file.uri] * len(sizes), starts, sizes), strict=True
    ):
        pieces.append(replace(file, start=start, stop=start + size, before=before, size=size))
        before += feeds
    return pieces


def _between(file: SourceFile, starts: list[int]) -> list[SourceFile]:
    """The file cut at these bytes, the last piece to its end."""
    stops = [*starts[1:], -1]
    return [
        replace(file, start=start, stop=stop, size=(stop if stop >= 0 else file.size) - start)
        for start, stop in zip(starts, stops, strict=True)
    ]


def _line_feeds(path: str, start: int, size: int) -> int:
    """Line feeds in these bytes of a file, counted into one buffer: three times as fast as `bytes.count`."""
    feeds, buffer = 0, bytearray(min(size, BATCH_BYTES))
    codes = np.frombuffer(buffer, np.uint8)
    with open(path, "rb", buffering=0) as stream:
        stream.seek(start)
        while size > 0 and (read := stream.readinto(memoryview(buffer)[:size])):
            feeds += int(np.count_nonzero(codes[:read] == LINE_FEED))
            size -= read
    return feeds
