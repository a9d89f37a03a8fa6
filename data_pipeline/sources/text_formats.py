"""Read the records of a part of a JSON-lines or plain text file: line number or id field, and text.

A line of a JSON-lines file is an object, and a record. The documents of a plain text file are separated by blank lines,
or the file is one document; the number of each is that of its first line.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from io import BufferedReader
from itertools import chain
from typing import Any

import numpy as np

from data_pipeline.errors import UserError, listed
from data_pipeline.io.decompress import open_bytes
from data_pipeline.settings import DataSettings
from data_pipeline.sources.cleaning import BYTE_ORDER_MARK, Counts, check_encoding, decode
from data_pipeline.sources.formats import (
    LONGEST_RECORD,
    Record,
    SourceFile,
    check_length,
    is_local_file,
    joined,
    striped,
)

# Cut a file of lines into parts.

BUFFER_BYTES = 1 << 20
LINE_FEED = 10


def text_parts(file: SourceFile, settings: DataSettings, part_bytes: int) -> list[SourceFile]:
    """Cut a plain text file as `line_parts` does; one that is a single document is one part."""
    return [file] if settings.documents == "file" else line_parts(file, settings, part_bytes)


def line_parts(file: SourceFile, settings: DataSettings, part_bytes: int) -> list[SourceFile]:
    """Cut a local file every `part_bytes`, and count the lines before each part; a compressed one by records."""
    if file.compression:
        return striped(file, part_bytes)
    if file.size <= part_bytes or not is_local_file(file):
        return [file]
    before, parts = 0, []
    for start in range(0, file.size, part_bytes):
        size = min(part_bytes, file.size - start)
        parts.append(replace(file, start=start, stop=start + size, before=before, size=size))
        before += _line_feeds(file.uri, start, size)
    return parts


def _line_feeds(path: str, start: int, size: int) -> int:
    """Count the line feeds in these bytes of a file through one buffer: three times as fast as `bytes.count`."""
    feeds, buffer = 0, bytearray(min(size, BUFFER_BYTES))
    codes = np.frombuffer(buffer, np.uint8)
    with open(path, "rb", buffering=0) as stream:
        stream.seek(start)
        while size > 0 and (count := stream.readinto(memoryview(buffer)[:size])):
            feeds += int(np.count_nonzero(codes[:count] == LINE_FEED))
            size -= count
    return feeds


# Read the lines of a part of a file.

READ_BYTES = 4 << 20

Line = tuple[int, int, bytes]
"""Number (from 1), first byte in the file, content."""


def first_line(file: SourceFile, stream: BufferedReader) -> tuple[int, int]:
    """Seek to the first line that starts in this part; return the number of lines before it and its first byte."""
    number, position = file.before, file.start
    if position:
        stream.seek(position - 1)
        # Usually a line from the previous part ends here; a lone line feed means that no line was cut.
        while (part := stream.readline(READ_BYTES)) and not part.endswith(b"\n"):
            position += len(part)
        number += part != b"\n" or position > file.start
        position += len(part) - 1
    else:
        check_encoding(stream.peek(4096)[:4096], file.uri)
    return number, position


def lines_of(file: SourceFile, stream: BufferedReader) -> Iterator[Line]:
    """Yield number (from 1), first byte and content of each line that starts in this part or after it. Of a line of
    more than LONGEST_RECORD bytes, only a beginning that is longer than that is yielded."""
    number, position = first_line(file, stream)
    while line := stream.readline(LONGEST_RECORD + len(BYTE_ORDER_MARK) + 1):
        number, start = number + 1, position
        position += len(line)
        rest = line
        while (
            len(line) > LONGEST_RECORD and not rest.endswith(b"\n") and (rest := stream.readline(READ_BYTES))
        ):
            position += len(rest)
        yield number, start, line if start else line.removeprefix(BYTE_ORDER_MARK)


# Read the records of a part of a JSON-lines file.

_JSON = json.JSONDecoder(strict=False)  # cleaning.py removes control characters


def json_records(file: SourceFile, settings: DataSettings, counts: Counts) -> Iterator[Record]:
    """Yield the records of one part. A line that is not a JSON object, lacks the fields that the settings name or is
    longer than LONGEST_RECORD is skipped and counted, or raises UserError with file and line, as data.bad_records
    says."""
    with open_bytes(file.uri, file.compression) as stream:
        for number, position, line in lines_of(file, stream):
            if 0 <= file.stop <= position:
                return
            if not file.owns(number) or line.isspace():
                continue
            invalid = counts.invalid_characters
            try:
                record = _record(line, f"{file.uri}:{number}", number, settings, counts)
            except UserError as error:
                counts.skip_or_raise(error, settings)
                counts.invalid_characters = invalid
            else:
                yield record


def _record(line: bytes, where: str, number: int, settings: DataSettings, counts: Counts) -> Record:
    check_length(len(line), where)
    try:
        record = _JSON.decode(decode(line, counts))
    except (ValueError, RecursionError) as error:
        raise UserError(f"not JSON: {error}", where=where, expected="one JSON object a line") from error
    if not isinstance(record, dict):
        raise UserError(
            f"the line holds a JSON {type(record).__name__}", where=where, expected="one JSON object a line"
        )
    text = _field(record, settings.text_field, where, "data.text_field")
    if not isinstance(text, str | None):
        raise UserError(
            f"field {settings.text_field!r} holds no text", where=where, remedy="set data.text_field"
        )
    name = _field(record, settings.id_field, where, "data.id_field") if settings.id_field else number
    if not isinstance(name, str | int):
        raise UserError(f"field {settings.id_field!r} holds no id", where=where, remedy="set data.id_field")
    return name, text or ""


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


# Read the documents of a part of a plain text file: separated by blank lines, or one per file.

# Lines of nothing but Unicode white space; the last line of a file may lack its line feed. A line of more than
# BLOCK_BYTES never counts as blank.
_WIDE = rb"\xc2[\x85\xa0]|\xe1\x9a\x80|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|\xe2\x81\x9f|\xe3\x80\x80"
_SPACE = rb"(?:[ \t\r\x0b\x0c]|" + _WIDE + rb")"
_BLANK_LINES = rb"((?:%b*+\n)++(?:%b++\Z)?|%b++\Z)" % (_SPACE, _SPACE, _SPACE)
_FIRST_GAP = re.compile(_BLANK_LINES)
_GAP = re.compile(rb"\n" + _BLANK_LINES)  # with a literal first byte: far faster


BLOCK_BYTES = 1 << 20
"""Approximate size of the blocks in which a file is searched for blank lines."""


def texts(file: SourceFile, settings: DataSettings, counts: Counts) -> Iterator[Record]:
    """Yield the documents of one part by `settings.documents`: number of the first line, and text. A document that is
    longer than LONGEST_RECORD is skipped and counted, or raises UserError, as data.bad_records says."""
    with open_bytes(file.uri, file.compression) as stream:
        one = settings.documents == "file"
        for number, document in (
            [_file(file, stream)] if one else _between_blank_lines(file, _runs(file, stream))
        ):
            try:
                check_length(len(document), f"{file.uri}:{number}")
            except UserError as error:
                counts.skip_or_raise(error, settings)
            else:
                yield number, decode(document, counts)


def _file(file: SourceFile, stream: BufferedReader) -> tuple[int, bytes]:
    check_encoding(stream.peek(4096)[:4096], file.uri)
    return 1, joined(iter(partial(stream.read, BLOCK_BYTES), b"")).removeprefix(BYTE_ORDER_MARK)


def _runs(file: SourceFile, stream: BufferedReader) -> Iterator[Line]:
    """Yield the text between blank lines, from the first line that starts in this part on, in pieces of about
    BLOCK_BYTES at most: number of the first line, first byte, content. Between two texts, yield the position of the
    last blank line with empty content."""
    number, position = first_line(file, stream)
    number += 1
    for block, is_line in _blocks(stream):
        at = 0
        if position == 0:
            at = len(BYTE_ORDER_MARK) * block.startswith(BYTE_ORDER_MARK)
        for begin, end in _gaps(block, at) if is_line else ():
            if begin > at:
                yield number, position + at, block[at:begin]
            number += block.count(b"\n", at, end)
            yield number, position + max(begin, block.rfind(b"\n", 0, end - 1) + 1), b""
            at = end
        if at < len(block):
            yield number, position + at, block[at:]
            number += block.count(b"\n", at)
        position += len(block)


def _gaps(block: bytes, at: int) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each run of blank lines in a block; a line begins at `at`."""
    gaps = chain(filter(None, [_FIRST_GAP.match(block, at)]), _GAP.finditer(block, at))
    for begin, end in (gap.span(1) for gap in gaps):
        if end - begin < BLOCK_BYTES or max(map(len, block[begin:end].split(b"\n"))) < BLOCK_BYTES - 1:
            yield begin, end


def _blocks(stream: BufferedReader) -> Iterator[tuple[bytes, bool]]:
    """Read the stream in blocks of about BLOCK_BYTES that end at a line end, or pieces of a longer line; also yield
    whether the block consists of complete lines."""
    rest, at_line = b"", True
    while more := stream.read(BLOCK_BYTES):
        data = rest + more
        end = (data.rfind if at_line else data.find)(b"\n") + 1
        if not end:
            yield data, False
            rest, at_line = b"", False
            continue
        yield data[:end], at_line
        rest, at_line = data[end:], True
    if rest:
        yield rest, True


def _between_blank_lines(file: SourceFile, runs: Iterator[Line]) -> Iterator[tuple[int, bytes]]:
    """Yield documents separated by blank lines: first line and content. A document belongs to the part that owns the
    blank line before it (the first of a file: to the first part), so each part finds its own without reading the
    others."""
    count, past, owned = 0, False, file.start == 0

    def until_blank(text: bytes) -> Iterator[bytes]:
        nonlocal past
        yield text
        for _, position, text in runs:
            past = 0 <= file.stop <= position
            if not text:
                return
            yield text

    for number, position, text in runs:
        past = 0 <= file.stop <= position
        if not text:
            owned = True
        elif owned:
            count += 1
            document = joined(until_blank(text))
            if file.owns(count):
                yield number, document
        if past:
            return
