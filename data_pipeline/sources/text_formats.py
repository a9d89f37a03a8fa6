"""Read the records of a part of a JSON-lines or plain text file: line number or id field, and text.

A line of a JSON-lines file is an object, and a record. The documents of a plain text file are separated by blank lines,
or the file is one document; the number of each is that of its first line.
"""

import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from io import BufferedReader
from itertools import chain
from typing import Any, BinaryIO

from data_pipeline.errors import UserError, listed
from data_pipeline.io.decompress import open_bytes
from data_pipeline.settings import DataSettings
from data_pipeline.sources.cleaning import BYTE_ORDER_MARK, Counts, check_encoding, decode, decoded
from data_pipeline.sources.listing import PASSAGE_BYTES, Record, SourceFile

# Read the fields of one JSON object that is too long for memory, with long strings as streams. Strings longer than
# SHORT are copied unchanged to a spool on disk; the rest of the object is parsed by `json`, with the same checks as any
# other object. A long string is decoded when it is read.

SHORT = 1 << 16
"""Maximum bytes of a string held in memory."""
MOST_BESIDE = 8 << 20
"""Maximum bytes of an object without its long strings: `json` may need forty times as much memory."""
PIECE = 1 << 20

_MARK = "-Infinity"  # replaces a long string: `json` passes each one to a callback, in order
_STRING_END = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_ESCAPE = re.compile(
    r"[^\\]|\\u[dD][89abAB]..(?:\\u....|(?!\\u)(?=..))|\\u(?![dD][89abAB])....|\\[^u]", re.DOTALL
)


class LongString:
    """A string of the object, read piece by piece. Iteration raises ValueError for an invalid JSON escape."""

    def __init__(self, spool: BinaryIO, start: int, size: int, counts: Counts) -> None:
        self._spool, self._start, self._size, self._counts = spool, start, size, counts

    def uncounted(self) -> "LongString":
        """Return the same string, whose reading counts nothing."""
        return LongString(self._spool, self._start, self._size, Counts())

    def __iter__(self) -> Iterator[str]:
        rest = ""
        for text in decoded(self._raw(), self._counts):
            text = rest + text
            end = _whole_characters(text)
            rest = text[end:]
            yield json.loads(f'"{text[:end]}"', strict=False)
        yield json.loads(f'"{rest}"', strict=False)

    def _raw(self) -> Iterator[bytes]:
        for at in range(self._start, self._start + self._size, PIECE):
            self._spool.seek(at)
            yield self._spool.read(min(PIECE, self._start + self._size - at))


def read_object(parts: Iterable[bytes], spool: BinaryIO, counts: Counts) -> Any:
    """Parse the JSON text in `parts`, with a LongString for each long string. These are read from `spool`, an empty
    file that must stay open. Raises ValueError for text that is not JSON, or that holds more than MOST_BESIDE bytes
    besides its long strings."""
    strings: list[LongString] = []
    skeleton = decode(bytes(_skeleton(parts, spool, strings, counts)), counts)
    left = iter(strings)

    def constant(name: str) -> Any:
        value = next(left, None) if name == _MARK else float(name)
        if value is None:  # the text itself contains the mark
            raise ValueError(f"{_MARK} is no value")
        return value

    return json.loads(skeleton, strict=False, parse_constant=constant)


def _skeleton(
    parts: Iterable[bytes], spool: BinaryIO, strings: list[LongString], counts: Counts
) -> bytearray:
    """Return the text with a mark for each long string; its bytes go to the spool, its LongString to `strings`."""
    skeleton = bytearray()
    string = bytearray()  # the beginning of the string that is open
    inside, spooled, start = False, False, 0
    escape = b""  # a backslash that ended a part
    for part in parts:
        part, escape, at = escape + part, b"", 0
        while at < len(part):
            if not inside:
                quote = part.find(b'"', at)
                skeleton += part[at:] if quote < 0 else part[at:quote]
                if quote < 0:
                    break
                inside, at, start = True, quote + 1, spool.tell()
                continue
            end = _STRING_END.match(part, at).end()  # type: ignore[union-attr]
            string += part[at:end]
            ended = part[end : end + 1] == b'"'
            if len(string) > SHORT or spooled:
                spooled = True
                spool.write(string)
                string.clear()
            if ended and spooled:
                skeleton += _MARK.encode()
                strings.append(LongString(spool, start, spool.tell() - start, counts))
            elif ended:
                skeleton += b'"' + string + b'"'
            if ended:
                inside, spooled = False, False
                string.clear()
            elif end < len(part):
                escape = part[end:]
                break
            at = end + 1
        if len(skeleton) > MOST_BESIDE:
            raise ValueError(f"more than {MOST_BESIDE >> 20} MiB beside its long strings")
    if inside:
        raise ValueError("a string without an end")
    return skeleton + escape


def _whole_characters(text: str) -> int:
    """Return the end of the last complete character in a piece of a JSON string: neither an escape nor the two escapes
    of a surrogate pair may be cut."""
    at = max(0, len(text) - 12)
    while at and text[at - 1] == "\\":
        at -= 1
    while found := _ESCAPE.match(text, at):
        at = found.end()
    return at


def in_passages(record: int | str, parts: Iterator[bytes], counts: Counts) -> Record:
    """Make the record whose text is these bytes, which may be cut anywhere."""
    passages = decoded(parts, counts)
    return record, next(passages, ""), passages


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


def lines_of(file: SourceFile, stream: BufferedReader, longest: int) -> Iterator[Line]:
    """Yield number (from 1), first byte and content of each line that starts in this part or after it. A line of more
    than `longest` bytes comes in several parts with the same number."""
    number, position = first_line(file, stream)
    ended, start = True, position
    for part in iter(partial(stream.readline, longest), b""):
        if ended:
            number, start = number + 1, position
        ended = part.endswith(b"\n")
        yield number, start, part if position else part.removeprefix(BYTE_ORDER_MARK)
        position += len(part)


# Read the records of a part of a JSON-lines file.

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


# Read the documents of a part of a plain text file: separated by blank lines, or one per file.

# Lines of nothing but Unicode white space; the last line of a file may lack its line feed. A line of more than
# PASSAGE_BYTES never counts as blank.
_WIDE = rb"\xc2[\x85\xa0]|\xe1\x9a\x80|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|\xe2\x81\x9f|\xe3\x80\x80"
_SPACE = rb"(?:[ \t\r\x0b\x0c]|" + _WIDE + rb")"
_BLANK_LINES = rb"((?:%b*+\n)++(?:%b++\Z)?|%b++\Z)" % (_SPACE, _SPACE, _SPACE)
_FIRST_GAP = re.compile(_BLANK_LINES)
_GAP = re.compile(rb"\n" + _BLANK_LINES)  # with a literal first byte: far faster


def texts(file: SourceFile, settings: DataSettings, counts: Counts) -> Iterator[Record]:
    """Yield the documents of one part by `settings.documents`: number of the first line, and text."""
    with open_bytes(file.uri, file.compression) as stream:
        if settings.documents != "file":
            yield from _paragraph_runs(file, _runs(file, stream), counts)
            return
        check_encoding(stream.peek(4096)[:4096], file.uri)
        first = stream.read(PASSAGE_BYTES).removeprefix(BYTE_ORDER_MARK)
        others = iter(partial(stream.read, PASSAGE_BYTES), b"")
        yield in_passages(1, chain([first], others), counts)


def _runs(file: SourceFile, stream: BufferedReader) -> Iterator[Line]:
    """Yield the text between blank lines, from the first line that starts in this part on, in pieces of about
    PASSAGE_BYTES at most: number of the first line, first byte, content. Between two texts, yield the position of the
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
    found = chain(filter(None, [_FIRST_GAP.match(block, at)]), _GAP.finditer(block, at))
    for begin, end in (gap.span(1) for gap in found):
        if end - begin < PASSAGE_BYTES or max(map(len, block[begin:end].split(b"\n"))) < PASSAGE_BYTES - 1:
            yield begin, end


def _blocks(stream: BufferedReader) -> Iterator[tuple[bytes, bool]]:
    """Read the stream in blocks of about PASSAGE_BYTES that end at a line end, or pieces of a longer line; also yield
    whether the block consists of whole lines."""
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
    """Yield documents separated by blank lines: first line and text. A document belongs to the part that owns the blank
    line before it (the first of a file: to the first part), so each part finds its own without reading the others."""
    first = found = size = 0
    parts: list[bytes] = []
    inside, ours, past, owned = False, False, False, file.start == 0

    def rest() -> Iterator[bytes]:
        """Yield the rest of a long document, and read the blank lines after it."""
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
            yield in_passages(first, chain([begun], rest()), counts)
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
