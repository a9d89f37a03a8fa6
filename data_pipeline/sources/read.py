"""Find the parts of the sources (files, folders, globs, URIs), and read documents with stable ids from them.

`discover` lists the parts of the sources in an order that depends only on file names; `read` streams the cleaned
documents of one part, from the `records` of its format, whose text is unchanged. The suffix decides the format: .txt
(.text), .jsonl (.json, .ndjson), .parquet, .arrow, .xml (Wikipedia dumps), each also with .gz, .bz2, .xz and .zst.
WikiExtractor files, which have no suffix, are recognised by content. Of folders that Hugging Face `datasets` wrote,
saved_datasets.py says what is read. The module of each format is imported only when needed: pyarrow is slow to import.

A part may be a range of a larger file: each part finds its own records without reading the others.

A document's id is `path:record`. The path is relative to the source's root (the folder itself; for a glob, the
folders before its first wildcard; for a file, its folder), so that ids depend neither on the working directory nor
on where the data is. The record is the id field or, without one, the line on which the document begins, counted from
1 (tables: its row), or the page id for Wikipedia. If two sources hold the same relative path, the path in the n-th
source becomes `#n/path`.

A record is (record, text, more). Documents of more than a million bytes are read in passages, so memory stays small at
any length: the first passage is `text`, the others are read from `more` before the next record is requested.

Bad text never stops a run: cleaning.py has the rules and what is counted. An unreadable record does (broken JSON, no
text field), unless data.bad_records=skip: then it is counted and named. A truncated file always does.
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
from data_pipeline.sources.cleaning import Counts, clean, cleaned, utf8_size
from data_pipeline.sources.listing import Record, SourceFile, files_of
from data_pipeline.sources.passed_over import PassedOver


def records(file: SourceFile, settings: DataSettings, counts: Counts) -> Iterator[Record]:
    """Read the records of one part: id field or number (first line or table row, from 1) and text.
    Raises UserError, with file and line, for a record that cannot be read."""
    if file.format in ("parquet", "arrow"):
        from data_pipeline.sources.tables import table_records

        return table_records(file, settings, counts)
    if file.format == "wikipedia":
        from data_pipeline.sources.wikipedia import pages

        return pages(file, settings, counts)
    if file.format == "jsonl":
        from data_pipeline.sources.text_formats import json_records

        return json_records(file, settings, counts)
    if file.format == "wikiextractor":
        from data_pipeline.sources.wikipedia import extracted_pages

        return extracted_pages(file, counts)
    from data_pipeline.sources.text_formats import texts

    return texts(file, settings, counts)


# List the parts of the sources, and read the documents of one part.

PART_BYTES = 32 << 20
"""A larger plain local file is split among workers in pieces of this size."""
STRIPE_BYTES = 16 << 20
"""A larger compressed file is split by records, one part for every STRIPE_BYTES: each part decompresses the whole file,
at some hundred MB/s, and does the rest of the work, twenty times slower, for its own records only."""
MAX_STRIPES = 64
"""Maximum number of such parts per file: with more, decompression would take longer than the rest."""
MAX_SOURCES = 1 << 16
BATCH_BYTES = 1 << 20
LINE_FEED = 10


def discover(settings: DataSettings, run: Callable[..., Iterable[Any]] = map) -> list[SourceFile]:
    """List all parts of `settings.sources`: sources in the order given, files by name, parts of a file front to back.

    Large plain files are read once to count their lines; `run` may parallelise that (`executor.map`).
    Raises UserError for a source that is missing, empty, of an unknown format, or named twice."""
    return parts_of(source_files(settings), settings, run)


def parts_of(
    files: list[SourceFile], settings: DataSettings, run: Callable[..., Iterable[Any]] = map
) -> list[SourceFile]:
    """Cut the files into parts, as `discover` returns them."""
    parts: list[SourceFile] = []
    for file in files:
        with reading(file.uri):
            parts += _parts_of_file(file, settings, run)
    return parts


def source_files(settings: DataSettings, passed_over: PassedOver | None = None) -> list[SourceFile]:
    """List the files that `discover` finds, before they are cut into parts; no text is read. What is left out is added
    to `passed_over`."""
    if not settings.sources:
        raise UserError(
            "there is nothing to read", where="data.sources", remedy="name files, folders or globs"
        )
    if len(settings.sources) > MAX_SOURCES:
        raise UserError(f"more than {MAX_SOURCES} sources", where="data.sources", remedy="name folders")
    language_of(settings, 0)
    passed_over = PassedOver() if passed_over is None else passed_over
    names: dict[str, str] = {}
    uris: set[str] = set()
    found: list[SourceFile] = []
    for number, source in enumerate(settings.sources, 1):
        with reading(source):
            files = files_of(source, passed_over, settings.split)
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
    if settings.split and not passed_over.has_splits:
        raise UserError(
            f"is {settings.split}, and no source is a folder with splits that Hugging Face `datasets` saved",
            where="data.split",
            remedy="leave it empty",
        )
    return found


def read(file: SourceFile, settings: DataSettings, counts: Counts) -> Iterator[Document]:
    """Yield the cleaned documents of one part and update `counts`. Documents without a visible character are dropped.
    Raises UserError, with file and line, for a record or a file that cannot be read."""
    with reading(file.uri), _as_it_is_now(file):
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
            for _ in passages:  # unread passages still count, and the next record comes after them
                pass


@contextmanager
def _as_it_is_now(file: SourceFile) -> Iterator[None]:
    """Drop listings that a store's client has kept: a Dask worker may have read an older file of this name. Raise
    UserError if a local file's size, before or after it is read, differs from when it was found: records could be
    missing, or belong to two parts."""
    fs = filesystem(file.uri)[0]
    if not (local := is_local(fs)):
        fs.invalidate_cache()

    def check() -> None:
        if local and file.total >= 0 and (size := os.path.getsize(file.uri)) != file.total:
            raise UserError(
                f"has changed: {size} bytes, and {file.total} before",
                where=file.uri,
                remedy="run it again when no program writes to it",
            )

    check()
    yield
    check()


def at_white_space(passages: Iterable[str]) -> Iterator[str]:
    """Recut the passages after white space where possible, so that no word is cut in two."""
    rest = ""
    for passage in passages:
        text = rest + passage
        end = max(text.rfind("\n"), text.rfind(" ")) + 1 or len(text)
        rest = text[end:]
        yield text[:end]
    yield rest


def _measured(passages: Iterable[str], counts: Counts, uri: str) -> Iterator[str]:
    with reading(uri):  # the caller reads them while `read` waits
        for passage in passages:
            counts.bytes += utf8_size(passage)
            yield passage


def with_visible(passages: Iterator[str]) -> str:
    """Join the passages up to the first that holds a visible character."""
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
        from data_pipeline.sources.wikipedia import bzip2_borders

        if borders := bzip2_borders(file.uri, STRIPE_BYTES):
            return _between(file, [0, *borders])
    if (file.compression or file.format == "arrow") and file.format != "parquet" and not whole:
        stripes = -(-file.size // (STRIPE_BYTES if file.compression else PART_BYTES))
        stripes = min(max(stripes, 1), MAX_STRIPES)
        return [replace(file, stripe=number, stripes=stripes) for number in range(stripes)]
    if file.compression or file.size <= PART_BYTES or whole or not local:
        return [file]
    if file.format == "parquet":
        from data_pipeline.sources import tables

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
    """Cut the file at these byte offsets; the last piece ends with the file."""
    stops = [*starts[1:], -1]
    return [
        replace(file, start=start, stop=stop, size=(stop if stop >= 0 else file.size) - start)
        for start, stop in zip(starts, stops, strict=True)
    ]


def _line_feeds(path: str, start: int, size: int) -> int:
    """Count the line feeds in these bytes of a file through one buffer: three times as fast as `bytes.count`."""
    feeds, buffer = 0, bytearray(min(size, BATCH_BYTES))
    codes = np.frombuffer(buffer, np.uint8)
    with open(path, "rb", buffering=0) as stream:
        stream.seek(start)
        while size > 0 and (read := stream.readinto(memoryview(buffer)[:size])):
            feeds += int(np.count_nonzero(codes[:read] == LINE_FEED))
            size -= read
    return feeds
