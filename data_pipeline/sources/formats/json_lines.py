"""Read the records of a part of a JSON-lines file: line number or id field, and text."""

import json
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, BinaryIO

from data_pipeline.errors import UserError, listed
from data_pipeline.io.decompress import open_bytes
from data_pipeline.settings import DataSettings
from data_pipeline.sources.cleaning import BYTE_ORDER_MARK, decode
from data_pipeline.sources.formats.lines import Line, lines_of
from data_pipeline.sources.formats.long_json import LongString, read_object
from data_pipeline.sources.read_counts import Counts
from data_pipeline.sources.source_file import Record, SourceFile

LONG_LINE = 4 << 20
"""Maximum bytes of a line that is decoded in one piece."""

_JSON = json.JSONDecoder(strict=False)  # cleaning.py removes control characters


def json_records(file: SourceFile, settings: DataSettings, counts: Counts) -> Iterator[Record]:
    """Yield the records of one part. A line that is not a JSON object or lacks the fields that the settings name is
    skipped and counted, or raises UserError with file and line, as data.bad_records says."""
    with open_bytes(file.uri, file.compression) as stream:
        yield from _records(file, lines_of(file, stream, LONG_LINE), settings, counts)


def _records(
    file: SourceFile, lines: Iterator[Line], settings: DataSettings, counts: Counts
) -> Iterator[Record]:
    for number, position, line in lines:
        if 0 <= file.stop <= position:
            return
        ours, where = file.owns(number), f"{file.uri}:{number}"
        if line.endswith(b"\n") or len(line) < LONG_LINE - len(BYTE_ORDER_MARK):
            if ours and not line.isspace():
                yield from _read(partial(_json_object, line, where, counts), where, number, settings, counts)
            continue
        parts = _whole_line(line, lines)
        if ours:
            with tempfile.TemporaryFile() as spool:
                yield from _read(
                    partial(_long_object, parts, where, spool, counts), where, number, settings, counts
                )
        for _ in parts:
            pass


def _read(
    parse: Callable[[], Any], where: str, number: int, settings: DataSettings, counts: Counts
) -> Iterator[Record]:
    """Yield the record that `parse` gives, or none, if it cannot be read and data.bad_records=skip."""
    invalid = counts.invalid_characters
    try:
        record = _record(parse(), where, number, settings)
    except UserError as error:
        counts.skip_or_raise(error, settings)
        counts.invalid_characters = invalid
    else:
        yield record


def _record(record: Any, where: str, number: int, settings: DataSettings) -> Record:
    if not isinstance(record, dict):
        raise UserError(
            f"the line holds a JSON {type(record).__name__}", where=where, expected="one JSON object a line"
        )
    text = _field(record, settings.text_field, where, "data.text_field")
    if not isinstance(text, str | LongString | None):
        raise UserError(
            f"field {settings.text_field!r} holds no text", where=where, remedy="set data.text_field"
        )
    name = _field(record, settings.id_field, where, "data.id_field") if settings.id_field else number
    if not isinstance(name, str | int):
        raise UserError(f"field {settings.id_field!r} holds no id", where=where, remedy="set data.id_field")
    if isinstance(text, LongString):
        if settings.bad_records == "skip":  # what has been read of a record cannot be taken back
            for _ in _long_text(text.uncounted(), where):
                pass
        passages = _long_text(text, where)
        return name, next(passages, ""), passages
    return name, text or "", ()


def _whole_line(part: bytes, lines: Iterator[Line]) -> Iterator[bytes]:
    """Yield all pieces of the line that begins with `part`."""
    yield part
    while not part.endswith(b"\n") and (following := next(lines, None)):
        part = following[2]
        yield part


def _json_object(line: bytes, where: str, counts: Counts) -> Any:
    try:
        return _JSON.decode(decode(line, counts))
    except (ValueError, RecursionError) as error:
        raise _no_json(error, where) from error


def _long_object(parts: Iterator[bytes], where: str, spool: BinaryIO, counts: Counts) -> Any:
    try:
        return read_object(parts, spool, counts)
    except (ValueError, RecursionError) as error:
        raise _no_json(error, where) from error


def _no_json(error: Exception, where: str) -> UserError:
    return UserError(f"not JSON: {error}", where=where, expected="one JSON object a line")


def _long_text(text: LongString, where: str) -> Iterator[str]:
    try:
        yield from text
    except ValueError as error:
        raise _no_json(error, where) from error


def _field(record: dict[str, Any], field: str, where: str, setting: str) -> Any:
    try:
        return _value(record, field)
    except KeyError:
        raise UserError(
            f"the record has no field {field!r}",
            where=where,
            expected=listed(record),
            remedy=f"set {setting}",
        ) from None


def _value(record: dict[str, Any], field: str) -> Any:
    """Return the value of `field`: of the key of that very name, or else of the path `a.b`, the key b of the object
    a; None where that object is null. Raises KeyError."""
    if field in record:
        return record[field]
    outer, dot, rest = field.partition(".")
    inner = record[outer] if dot else {}
    if inner is None:
        return None
    if not isinstance(inner, dict) or not dot:
        raise KeyError(field)
    return _value(inner, rest)
