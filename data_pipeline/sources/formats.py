"""Define the formats of source files in one table: how a file is recognised, cut into parts and read.

The suffix decides the format, before that of a compression; XML and files without a suffix are recognised by their
first bytes. A part is a file, a range of it, or every n-th of its records: each part finds its own records.

To add a format, write a module with a reader, and with a function that cuts a file unless one that is there serves,
and add a row to FORMATS. The modules are imported only when a file of theirs is cut or read: pyarrow is slow to import.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from data_pipeline.errors import UserError
from data_pipeline.io.decompress import COMPRESSIONS, is_local, open_bytes, reading
from data_pipeline.io.object_store import filesystem
from data_pipeline.settings import DataSettings
from data_pipeline.sources.cleaning import Counts

LONGEST_RECORD = 256 << 20
"""Maximum bytes of a record: it is held in memory, with two or three copies of it."""

Record = tuple[int | str, str]
"""Number or id field, and text."""


@dataclass(frozen=True)
class SourceFile:
    """One part of a source: a file, or a piece of one."""

    uri: str
    """What to open."""
    name: str
    """Path relative to the source's root: the first half of its documents' ids."""
    format: str
    """A name in FORMATS."""
    compression: str
    """Empty, or a value of decompress.COMPRESSIONS."""
    size: int
    """Bytes on disk: a hint for scheduling."""
    start: int = 0
    """First byte; Parquet: first row group."""
    stop: int = -1
    """Byte after the last, row group after the last; -1: to the end."""
    before: int = 0
    """Line feeds, or Parquet rows, before `start`."""
    stripe: int = 0
    """Where `stripes` > 1: only each `stripes`-th record is this part's, from number `stripe` on."""
    stripes: int = 1
    source: int = 0
    """Number in data.sources."""
    total: int = -1
    """Bytes of the complete file when it was listed; -1: not known."""

    def owns(self, record: int) -> bool:
        """Return whether the record with this number, counted from any point, belongs to this part's stripe."""
        return record % self.stripes == self.stripe


Reader = Callable[[SourceFile, DataSettings, Counts], Iterator[Record]]
"""Yields the records of one part. Raises UserError, with file and line, for a record that cannot be read, unless
`Counts.skip_or_raise` skips it."""
Cutter = Callable[[SourceFile, DataSettings, int], list[SourceFile]]
"""Cuts a file into parts of about so many bytes on disk, front to back."""


@dataclass(frozen=True)
class Format:
    """A format of source files. `reader` and `cutter` are MODULE.FUNCTION in data_pipeline.sources."""

    suffixes: tuple[str, ...]
    reader: str
    cutter: str
    settings: tuple[str, ...]
    """The fields of DataSettings that these two read."""
    beginning: re.Pattern[bytes] | None = None
    """Matches the first bytes of its files; None: only a suffix tells."""
    suffix_decides: bool = True
    """False: a file with the suffix is of this format only if its first bytes are."""


_FIELDS = ("text_field", "id_field", "bad_records")

FORMATS = {
    "text": Format(
        (".txt", ".text"), "text_formats.texts", "text_formats.text_parts", ("documents", "bad_records")
    ),
    "jsonl": Format(
        (".jsonl", ".json", ".ndjson"),
        "text_formats.json_records",
        "text_formats.line_parts",
        _FIELDS,
        re.compile(rb'\{"id": '),  # WikiExtractor's --json
    ),
    "parquet": Format((".parquet",), "tables.table_records", "tables.row_group_parts", _FIELDS),
    "arrow": Format((".arrow",), "tables.table_records", "tables.batch_parts", _FIELDS),
    "wikiextractor": Format(
        (),
        "wikipedia.extracted_pages",
        "text_formats.line_parts",
        ("bad_records",),
        re.compile(rb'<doc id="'),
    ),
    "wikipedia": Format(
        (".xml",),
        "wikipedia.pages",
        "wikipedia.page_parts",
        ("bad_records",),
        re.compile(rb".*<mediawiki", re.DOTALL),
        suffix_decides=False,
    ),
}


# Recognise the format of a file.

_BY_SUFFIX = {suffix: name for name, row in FORMATS.items() for suffix in row.suffixes}
EXPECTED = f"{', '.join(_BY_SUFFIX)}, each also with {', '.join(COMPRESSIONS)}"
"""The files that are read, for a message."""
INSTEAD = dict.fromkeys(
    (".html", ".htm", ".xhtml", ".warc"),
    "extract its text first, for instance with trafilatura, as .jsonl",
)
"""Suffixes of files that hold no plain text, and what to do about them."""
_SPLIT_DUMP = re.compile(r"\.xml-p\d+p\d+")  # a part of a Wikipedia dump: pages from one id to another


def recognised(fs: Any, path: str, name: str, required: bool) -> SourceFile | None:
    """Return the file with its format; None for a file of no format that is read, unless one is `required`: then
    raises UserError. `name`: its path relative to the source's root."""
    stem, suffix = os.path.splitext(name)
    compression = COMPRESSIONS.get(suffix.lower(), "")
    ending = os.path.splitext(stem if compression else name)[1].lower()
    ending = ".xml" if _SPLIT_DUMP.fullmatch(ending) else ending
    format_name = _BY_SUFFIX.get(ending, "")
    uri = path if is_local(fs) else fs.unstrip_protocol(path)
    if not ending or (format_name and not FORMATS[format_name].suffix_decides):
        with reading(uri):
            format_name = _format_inside(uri, compression, required)
    if format_name:
        if shown_name(uri) != uri:  # the name is part of the document ids
            raise UserError(
                "its name is not UTF-8", where=shown_name(uri), remedy="rename the file or its folder"
            )
        size = fs.size(path)
        return SourceFile(uri, name, format_name, compression, size or 0, total=-1 if size is None else size)
    if required and ending in INSTEAD:
        raise UserError(f"{ending} is not read", where=path, expected=EXPECTED, remedy=INSTEAD[ending])
    if required and ending == ".xml":
        raise UserError("is no dump of MediaWiki", where=path, expected="pages-articles.xml")
    if required:
        raise UserError("its suffix names no format", where=path, expected=EXPECTED, remedy="rename the file")
    return None


def shown_name(name: str) -> str:
    """Return a file name as text; bytes that are not UTF-8 become \\udcNN."""
    return name.encode("utf-8", "backslashreplace").decode()


def _format_inside(uri: str, compression: str, required: bool) -> str:
    """Return the format that the first bytes of a file show; empty if they show none."""
    try:
        with open_bytes(uri, compression) as stream:
            head = stream.peek(1024)[:1024]
    except (EOFError, UserError):
        if required or compression:  # a copy that failed, or a wrong suffix
            raise
        return ""
    return next((name for name, row in FORMATS.items() if row.beginning and row.beginning.match(head)), "")


# Cut a file into parts, and read the records of one.

PART_BYTES = 32 << 20
"""A larger plain local file is split among workers in pieces of about this size."""
STRIPE_BYTES = 16 << 20
"""A larger compressed file is split by records, one part for every STRIPE_BYTES: each part decompresses the whole file,
at some hundred MB/s, and does the rest of the work, twenty times slower, for its own records only."""
MAX_STRIPES = 64
"""Maximum number of such parts per file: with more, decompression would take longer than the rest."""


def parts_of(file: SourceFile, settings: DataSettings) -> list[SourceFile]:
    """Cut a file into parts, front to back."""
    cut: Cutter = _function(FORMATS[file.format].cutter)
    return cut(file, settings, STRIPE_BYTES if file.compression else PART_BYTES)


def records(file: SourceFile, settings: DataSettings, counts: Counts) -> Iterator[Record]:
    """Read the records of one part: id field or number (first line or table row, from 1) and text.
    Raises UserError, with file and line, for a record that cannot be read."""
    read: Reader = _function(FORMATS[file.format].reader)
    return read(file, settings, counts)


def _function(name: str) -> Any:
    module, _, function = name.partition(".")
    return getattr(import_module(f"data_pipeline.sources.{module}"), function)


def striped(file: SourceFile, part_bytes: int) -> list[SourceFile]:
    """Share the records of a file among parts that each read all of it, one for every `part_bytes`."""
    stripes = min(max(-(-file.size // part_bytes), 1), MAX_STRIPES)
    return [replace(file, stripe=number, stripes=stripes) for number in range(stripes)]


def between(file: SourceFile, starts: Sequence[int]) -> list[SourceFile]:
    """Cut the file at these byte offsets; the last piece ends with the file."""
    stops = [*starts[1:], -1]
    return [
        replace(file, start=start, stop=stop, size=(stop if stop >= 0 else file.size) - start)
        for start, stop in zip(starts, stops, strict=True)
    ]


def is_local_file(file: SourceFile) -> bool:
    """Return whether the file is on this machine, where reading from any offset is cheap."""
    return is_local(filesystem(file.uri)[0])


def joined(pieces: Iterable[bytes]) -> bytes:
    """Join the pieces of one record. Of one longer than LONGEST_RECORD, return only a beginning that is longer than
    that; all pieces are read."""
    kept, size = [], 0
    for piece in pieces:
        if size <= LONGEST_RECORD:
            kept.append(piece)
            size += len(piece)
    return b"".join(kept)


def check_length(size: int, where: str) -> None:
    """Raise UserError for a record of more than LONGEST_RECORD bytes."""
    if size > LONGEST_RECORD:
        raise UserError(
            f"the record has more than {LONGEST_RECORD:,} bytes",
            where=where,
            expected=f"at most {LONGEST_RECORD >> 20} MiB, which are held in memory",
            remedy="split it into several records",
        )
