"""Find the parts of the sources (files, folders, globs, URIs), and read documents with stable ids from them.

`discover` lists the parts of the sources in an order that depends only on file names; `read` streams the cleaned
documents of one part, from the records that the reader of its format yields (formats.py), whose text is unchanged.

A document's id is `path:record`. The path is relative to the source's root (the folder itself; for a glob, the
folders before its first wildcard; for a file, its folder), so that ids depend neither on the working directory nor
on where the data is. The record is the id field or, without one, the line on which the document begins, counted from
1 (tables: its row), or the page id for Wikipedia. If two sources hold the same relative path, the path in the n-th
source becomes `#n/path`.

Bad text never stops a run: cleaning.py has the rules and what is counted. An unreadable record does (broken JSON, no
text field, more than LONGEST_RECORD bytes), unless data.bad_records=skip: then it is counted and named. A truncated
file always does.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from data_pipeline.errors import UserError
from data_pipeline.io.decompress import is_local, reading
from data_pipeline.io.object_store import filesystem
from data_pipeline.records import Document
from data_pipeline.settings import DataSettings, language_of
from data_pipeline.sources.cleaning import Counts, clean, utf8_size
from data_pipeline.sources.formats import SourceFile, parts_of, records
from data_pipeline.sources.listing import files_of
from data_pipeline.sources.passed_over import PassedOver

MAX_SOURCES = 1 << 16


def discover(settings: DataSettings) -> list[SourceFile]:
    """List all parts of `settings.sources`: sources in the order given, files by name, parts of a file front to back.

    Large plain files are read once to count their lines. Raises UserError for a source that is missing, empty, of an
    unknown format, or named twice."""
    parts: list[SourceFile] = []
    for file in source_files(settings):
        with reading(file.uri):
            parts += parts_of(file, settings)
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
    listed: list[SourceFile] = []
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
            listed.append(replace(file, name=name, source=number - 1))
    if settings.split and not passed_over.has_splits:
        raise UserError(
            f"is {settings.split}, and no source is a folder with splits that Hugging Face `datasets` saved",
            where="data.split",
            remedy="leave it empty",
        )
    return listed


def read(file: SourceFile, settings: DataSettings, counts: Counts) -> Iterator[Document]:
    """Yield the cleaned documents of one part and update `counts`. Documents without a visible character are dropped.
    Raises UserError, with file and line, for a record or a file that cannot be read."""
    with reading(file.uri), _as_it_is_now(file):
        for record, raw in records(file, settings, counts):
            text = clean(raw, counts)
            if not text or text.isspace():
                counts.empty_documents += 1
                continue
            counts.bytes += utf8_size(text)
            counts.documents += 1
            yield Document(f"{file.name}:{record}", text, file.source)


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
