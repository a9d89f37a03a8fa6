"""Read the documents of a part of a plain text file: separated by blank lines, or one per file."""

import re
from collections.abc import Iterator
from functools import partial
from io import BufferedReader
from itertools import chain

from data_pipeline.io.decompress import open_bytes
from data_pipeline.settings import DataSettings
from data_pipeline.sources.cleaning import BYTE_ORDER_MARK, check_encoding, decode
from data_pipeline.sources.formats.lines import Line, first_line
from data_pipeline.sources.read_counts import Counts
from data_pipeline.sources.source_file import PASSAGE_BYTES, Record, SourceFile, in_passages

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
