"""One unit of a source in, its records out: (record, text, more) with the text as it stands in the file.

A unit may be a piece of a larger file: every piece finds the records that are its own without reading the others.
A record too long to be held comes in passages: the first is `text`, the others are read from `more`, before the
next record is asked for.

This module reads lines: plain text, JSON lines and WikiExtractor's documents. Tables and Wikipedia's dumps have
modules of their own.
"""

import html
import json
import re
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from io import BufferedReader
from itertools import chain
from typing import Any, BinaryIO

from data_pipeline.bytestream import open_bytes
from data_pipeline.counts import Counts
from data_pipeline.errors import UserError
from data_pipeline.hygiene import BYTE_ORDER_MARK, check_encoding, decode, decoded
from data_pipeline.long_json import LongString, read_object
from data_pipeline.settings import DataSettings

READ_BYTES = 4 << 20
PASSAGE_BYTES = 1 << 20
"""A document of more bytes comes in passages of about this size. A line of more bytes is no blank line, whatever it
holds."""
LONG_LINE = 4 << 20
"""Bytes of a line of JSON that is still decoded in one piece."""

Record = tuple[int | str, str, Iterable[str]]
Line = tuple[int, int, bytes]

# Lines of nothing but Unicode's white space, the last of a file perhaps without its line feed.
_SPACE = rb"(?:[ \t\r\x0b\x0c]|\xc2[\x85\xa0]|\xe1\x9a\x80|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|\xe2\x81\x9f|\xe3\x80\x80)"
_BLANK_LINES = rb"((?:%b*+\n)++(?:%b++\Z)?|%b++\Z)" % (_SPACE, _SPACE, _SPACE)
_FIRST_GAP, _GAP = (
    re.compile(_BLANK_LINES),
    re.compile(rb"\n" + _BLANK_LINES),
)  # a literal first byte: far faster
_JSON = json.JSONDecoder(strict=False)  # control characters are hygiene's business
_DOC = re.compile(rb'<doc id="([^"]*)"[^>]*>\s*$')


@dataclass(frozen=True)
class SourceFile:
    """One unit of work: a file, or a piece of one."""

    uri: str  # what to open
    name: str  # path relative to the source's root: the first half of its documents' ids
    format: str  # text, jsonl, parquet, arrow, wikiextractor or wikipedia
    compression: str  # "" or a value of bytestream.COMPRESSIONS
    size: int  # bytes on disk: a hint for scheduling
    start: int = 0  # first byte; Parquet: first row group
    stop: int = -1  # byte after the last, row group after the last; -1: to the end
    before: int = 0  # line feeds, or Parquet rows, before `start`
    stripe: int = (
        0  # where `stripes` > 1: only each `stripes`-th record is this unit's, from number `stripe` on
    )
    stripes: int = 1
    source: int = 0  # number in data.sources
    total: int = -1  # bytes of the whole file when it was found; -1: not known

    def owns(self, record: int) -> bool:
        """Whether the record with this number, counted from any point, is of this unit's stripe."""
        return record % self.stripes == self.stripe


def records(file: SourceFile, settings: DataSettings, counts: Counts) -> Iterator[Record]:
    """The records of one unit: id field or number (the line on which it begins, or its row, from 1) and text.
    Raises UserError, with file and line, for a record that cannot be read."""
    if file.format in ("parquet", "arrow"):
        from data_pipeline.tables import table_records  # pyarrow takes a moment to import; few runs need it

        yield from table_records(file, settings, counts)
        return
    if file.format == "wikipedia":
        from data_pipeline.wikipedia import pages

        yield from pages(file, counts)
        return
    with open_bytes(file.uri, file.compression) as stream:
        if file.format == "jsonl":
            yield from _json_records(file, _lines(file, stream, LONG_LINE), settings, counts)
        elif file.format == "wikiextractor":
            yield from _wikiextractor(file, _lines(file, stream, READ_BYTES), counts)
        elif settings.documents == "file":
            check_encoding(stream.peek(4096)[:4096], file.uri)
            first = stream.read(PASSAGE_BYTES).removeprefix(BYTE_ORDER_MARK)
            yield _in_passages(1, chain([first], _parts(stream, PASSAGE_BYTES)), counts)
        else:
            yield from _paragraph_runs(file, _runs(file, stream), counts)


def _in_passages(record: int | str, parts: Iterator[bytes], counts: Counts) -> Record:
    passages = decoded(parts, counts)
    return record, next(passages, ""), passages


def _parts(stream: BufferedReader, size: int) -> Iterator[bytes]:
    return iter(partial(stream.read, size), b"")


def _first_line(file: SourceFile, stream: BufferedReader) -> tuple[int, int]:
    """Lines before the first one that starts in this unit, and its first byte, from which the stream goes on."""
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
    return number, position


def _lines(file: SourceFile, stream: BufferedReader, longest: int) -> Iterator[Line]:
    """Number (from 1), first byte and content of each line that starts in this unit or after it. A line of more
    than `longest` bytes comes in parts with one number."""
    number, position = _first_line(file, stream)
    ended, start = True, position
    for part in iter(partial(stream.readline, longest), b""):
        if ended:
            number, start = number + 1, position
        ended = part.endswith(b"\n")
        yield number, start, part if position else part.removeprefix(BYTE_ORDER_MARK)
        position += len(part)


def _runs(file: SourceFile, stream: BufferedReader) -> Iterator[Line]:
    """The text between blank lines, in parts of at most some PASSAGE_BYTES, from the first line that starts in this
    unit on: number of its first line, first byte, content. Between two texts: where the last blank line begins, and
    nothing."""
    number, position = _first_line(file, stream)
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
    """Where runs of blank lines begin and end, in a block that begins with a line at `at`."""
    found = chain(filter(None, [_FIRST_GAP.match(block, at)]), _GAP.finditer(block, at))
    for begin, end in (gap.span(1) for gap in found):
        if end - begin < PASSAGE_BYTES or max(map(len, block[begin:end].split(b"\n"))) < PASSAGE_BYTES - 1:
            yield begin, end


def _blocks(stream: BufferedReader) -> Iterator[tuple[bytes, bool]]:
    """The stream in blocks of some PASSAGE_BYTES that end where a line ends, or of a line that is longer; and
    whether a block begins where a line does and no line in it goes on in the next."""
    rest, whole = b"", True
    while more := stream.read(PASSAGE_BYTES):
        data = rest + more
        end = (data.rfind if whole else data.find)(b"\n") + 1
        if not end:
            yield data, False
            rest, whole = b"", False
            continue
        yield data[:end], whole
        rest, whole = data[end:], True
    if rest:
        yield rest, True


def _paragraph_runs(file: SourceFile, runs: Iterator[Line], counts: Counts) -> Iterator[Record]:
    """Documents apart by blank lines: first line and text. A document belongs to the unit that owns the blank line
    before it (the first one of a file: to the first unit), so that every unit finds its own without the others."""
    first = found = size = 0
    parts: list[bytes] = []
    inside, ours, past, owned = False, False, False, file.start == 0

    def rest() -> Iterator[bytes]:
        """What follows of a long document; the blank lines after it are read too."""
        nonlocal past
        for _, position, text in runs:
            past = 0 <= file.stop <= position
            if not text:
                return
            yield text

    for number, position, text in runs:
        past = 0 <= file.stop <= position
        if text and (inside or owned):
            if not inside:
                inside, first, found = True, number, found + 1
                ours = file.owns(found)
            if ours:
                parts.append(text)
                size += len(text)
            if size < PASSAGE_BYTES:
                continue
            begun, size, parts = b"".join(parts), 0, []
            yield _in_passages(first, chain([begun], rest()), counts)
            inside, owned = False, True
        elif not text:
            if parts:
                begun, size, parts = b"".join(parts), 0, []
                yield first, decode(begun, counts), ()
            inside, owned = False, True
        if past:
            return
    if parts:
        yield first, decode(b"".join(parts), counts), ()


def joined(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Lines in passages of PASSAGE_BYTES, about."""
    parts: list[bytes] = []
    size = 0
    for line in lines:
        parts.append(line)
        size += len(line)
        if size >= PASSAGE_BYTES:
            yield b"".join(parts)
            parts, size = [], 0
    if parts:
        yield b"".join(parts)


def _wikiextractor(file: SourceFile, lines: Iterator[Line], counts: Counts) -> Iterator[Record]:
    """WikiExtractor's documents: the id of the page and the text between `<doc ...>` and `</doc>`."""
    found = 0
    for number, position, line in lines:
        past = 0 <= file.stop <= position
        opening = _DOC.match(line)
        if opening is None:
            if not line.isspace() and (found or not file.start):
                raise UserError("text outside of <doc> and </doc>", where=f"{file.uri}:{number}")
            if past:
                return
            continue
        if past:
            return
        found += 1
        body = _until_doc_ends(lines, f"{file.uri}:{number}")
        if file.owns(found):
            name, text, more = _in_passages(decode(opening[1], counts), joined(body), counts)
            yield name, html.unescape(text), map(html.unescape, more)
        for _ in body:
            pass


def _until_doc_ends(lines: Iterator[Line], where: str) -> Iterator[bytes]:
    for _, _, line in lines:
        if line.startswith(b"</doc>"):
            return
        yield line
    raise UserError("the document has no </doc>: the file is cut off", where=where, remedy="make it again")


def _json_records(
    file: SourceFile, lines: Iterator[Line], settings: DataSettings, counts: Counts
) -> Iterator[Record]:
    for number, position, line in lines:
        if 0 <= file.stop <= position:
            return
        ours, where = file.owns(number), f"{file.uri}:{number}"
        if line.endswith(b"\n") or len(line) < LONG_LINE - len(BYTE_ORDER_MARK):
            if ours and not line.isspace():
                yield _json_record(_json_object(line, where, counts), where, number, settings)
            continue
        parts = _whole_line(line, lines)
        if ours:
            with tempfile.TemporaryFile() as spool:
                yield _json_record(_long_object(parts, where, spool, counts), where, number, settings)
        for _ in parts:
            pass


def _json_record(record: Any, where: str, number: int, settings: DataSettings) -> Record:
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
        passages = _long_text(text, where)
        return name, next(passages, ""), passages
    return name, text or "", ()


def _whole_line(part: bytes, lines: Iterator[Line]) -> Iterator[bytes]:
    """The line that begins with `part`."""
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
    if field not in record:
        known = ", ".join(record) or "none"
        raise UserError(
            f"the record has no field {field!r}", where=where, expected=known, remedy=f"set {setting}"
        )
    return record[field]
