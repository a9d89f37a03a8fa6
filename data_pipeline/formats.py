"""One unit of a source in, its records out: (record, text) with the text as it stands in the file.

Plain text, JSON lines and Parquet. A unit may be a piece of a larger file: every piece finds the records that are
its own without reading the others.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from typing import Any

from data_pipeline.bytestream import open_bytes
from data_pipeline.counts import Counts
from data_pipeline.errors import UserError
from data_pipeline.hygiene import BYTE_ORDER_MARK, check_encoding, decode
from data_pipeline.settings import DataSettings

READ_BYTES = 4 << 20

_SPACE_LEADS = b"\xc2\xe1\xe2\xe3"  # first bytes of white space beyond ASCII


@dataclass(frozen=True)
class SourceFile:
    """One unit of work: a file, or a piece of one."""

    uri: str  # what to open
    name: str  # path relative to the source's root: the first half of its documents' ids
    format: str  # text, jsonl or parquet
    compression: str  # "", gzip or zstd
    size: int  # bytes on disk: a hint for scheduling
    start: int = 0  # first byte; Parquet: first row group
    stop: int = -1  # byte after the last, row group after the last; -1: to the end
    before: int = 0  # line feeds, or Parquet rows, before `start`
    stripe: int = (
        0  # of a compressed file: only each `stripes`-th record is this unit's, from number `stripe` on
    )
    stripes: int = 1
    source: int = 0  # number in data.sources

    def owns(self, record: int) -> bool:
        """Whether the record with this number, counted from any point, is of this unit's stripe."""
        return record % self.stripes == self.stripe


def records(file: SourceFile, settings: DataSettings, counts: Counts) -> Iterator[tuple[int | str, str]]:
    """The records of one unit: id field or number (the line on which it begins, or its row, from 1) and text.
    Raises UserError, with file and line, for a record that cannot be read."""
    if file.format == "parquet":
        yield from _rows(file, settings, counts)
        return
    with open_bytes(file.uri, file.compression) as stream:
        if file.format == "jsonl":
            yield from _json_records(file, _lines(file, stream), settings, counts)
        elif settings.documents == "file":
            check_encoding(stream.peek(4096)[:4096], file.uri)
            yield 1, decode(stream.read().removeprefix(BYTE_ORDER_MARK), counts)
        else:
            yield from _paragraph_runs(file, _lines(file, stream), counts)


def _lines(file: SourceFile, stream: BufferedReader) -> Iterator[tuple[int, int, bytes]]:
    """Number (from 1), first byte and content of each line that starts in this unit or after it."""
    number, position = file.before, file.start
    if position:
        stream.seek(position - 1)
        # Usually a line that began in the unit before ends here; a lone line feed means that none was cut.
        while (part := stream.readline(READ_BYTES)) and not part.endswith(b"\n"):
            position += len(part)
        number += part != b"\n" or position > file.start
        position += len(part) - 1
    else:
        check_encoding(stream.peek(4096)[:4096], file.uri)
    for line in stream:
        number += 1
        if position == 0 and line.startswith(BYTE_ORDER_MARK):
            yield number, position, line[len(BYTE_ORDER_MARK) :]
        else:
            yield number, position, line
        position += len(line)


def _paragraph_runs(
    file: SourceFile, lines: Iterator[tuple[int, int, bytes]], counts: Counts
) -> Iterator[tuple[int, str]]:
    """Documents apart by blank lines: first line and text. A document belongs to the unit that owns the blank line
    before it (the first one of a file: to the first unit), so that every unit finds its own without the others."""
    first = found = 0
    parts: list[bytes] = []
    owned = file.start == 0
    for number, position, line in lines:
        past = 0 <= file.stop <= position
        if _is_blank(line):
            if parts:
                found += 1
                if file.owns(found):
                    text = decode(b"".join(parts), counts)
                    parts.clear()
                    yield first, text
                parts.clear()
            if past:
                return
            owned = True
        elif parts or owned:
            first = first if parts else number
            parts.append(line)
        elif past:
            return
    if parts and file.owns(found + 1):
        text = decode(b"".join(parts), counts)
        parts.clear()  # before the text is worked on: a document may be huge
        yield first, text


def _is_blank(line: bytes) -> bool:
    """Whether a line holds nothing but Unicode's white space."""
    rest = line.strip()
    return not rest or (rest[0] in _SPACE_LEADS and not rest.decode("utf-8", "replace").strip())


def _json_records(
    file: SourceFile, lines: Iterator[tuple[int, int, bytes]], settings: DataSettings, counts: Counts
) -> Iterator[tuple[int | str, str]]:
    for number, position, line in lines:
        if 0 <= file.stop <= position:
            return
        if line.isspace() or not file.owns(number):
            continue
        where = f"{file.uri}:{number}"
        record = _json_object(decode(line, counts), where)
        text = _field(record, settings.text_field, where, "data.text_field")
        if not isinstance(text, str | None):
            raise UserError(
                f"field {settings.text_field!r} holds no text", where=where, remedy="set data.text_field"
            )
        name = _field(record, settings.id_field, where, "data.id_field") if settings.id_field else number
        if not isinstance(name, str | int):
            raise UserError(
                f"field {settings.id_field!r} holds no id", where=where, remedy="set data.id_field"
            )
        yield name, text or ""


def _json_object(line: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line, strict=False)  # raw control characters in a string are hygiene's business
    except (ValueError, RecursionError) as error:
        raise UserError(f"not JSON: {error}", where=where, expected="one JSON object a line") from error
    if not isinstance(record, dict):
        raise UserError(
            f"the line holds a JSON {type(record).__name__}", where=where, expected="one JSON object a line"
        )
    return record


def _field(record: dict[str, Any], field: str, where: str, setting: str) -> Any:
    if field not in record:
        known = ", ".join(record) or "none"
        raise UserError(
            f"the record has no field {field!r}", where=where, expected=known, remedy=f"set {setting}"
        )
    return record[field]


def _rows(file: SourceFile, settings: DataSettings, counts: Counts) -> Iterator[tuple[int | str, str]]:
    from data_pipeline import parquet  # pyarrow takes a moment to import; few runs need it

    fields = [settings.text_field, *([settings.id_field] if settings.id_field else [])]
    rows = parquet.records(file.uri, file.compression, file.start, file.stop, fields)
    for number, row in enumerate(rows, file.before + 1):
        if settings.id_field and row[-1] is None:
            raise UserError(
                f"row {number} has no {settings.id_field!r}", where=file.uri, remedy="set data.id_field"
            )
        name = decode(row[-1] or b"", counts) if settings.id_field else number
        yield name, decode(row[0] or b"", counts)
