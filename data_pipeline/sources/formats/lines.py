"""Read the lines of a part of a file."""

from collections.abc import Iterator
from functools import partial
from io import BufferedReader

from data_pipeline.sources.cleaning import BYTE_ORDER_MARK, check_encoding
from data_pipeline.sources.source_file import SourceFile

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
