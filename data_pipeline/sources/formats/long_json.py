"""Read the fields of one JSON object that is too long for memory; long strings come as streams.

Strings longer than SHORT go to a spool on disk, as they stand; what is left of the object goes through `json`,
which so judges its form and its fields as it does any other's. A long string is decoded when it is read.
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from data_pipeline.sources.cleaning import decode, decoded
from data_pipeline.sources.read_counts import Counts

SHORT = 1 << 16
"""Bytes of a string that is still held in memory."""
MOST_BESIDE = 8 << 20
"""Bytes of an object, its long strings left out, that are accepted: `json` may need forty times as much memory."""
PIECE = 1 << 20

_MARK = "-Infinity"  # in the place of a long string: `json` hands over every one, in their order
_STRING_END = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_ESCAPE = re.compile(
    r"[^\\]|\\u[dD][89abAB]..(?:\\u....|(?!\\u)(?=..))|\\u(?![dD][89abAB])....|\\[^u]", re.DOTALL
)


class LongString:
    """A string of the object, to be read piece by piece. Raises ValueError, while it is read, for an escape that
    JSON does not know."""

    def __init__(self, spool: BinaryIO, start: int, size: int, counts: Counts) -> None:
        self._spool, self._start, self._size, self._counts = spool, start, size, counts

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
    """What the JSON text in `parts` holds, with LongString in the place of long strings, which are read from `spool`,
    an empty file, as long as it is open. Raises ValueError where it
    is no JSON, or holds more than MOST_BESIDE bytes beside its long strings."""
    strings: list[LongString] = []
    skeleton = decode(bytes(_skeleton(parts, spool, strings, counts)), counts)
    left = iter(strings)

    def constant(name: str) -> Any:
        value = next(left, None) if name == _MARK else float(name)
        if value is None:  # the text has one of its own
            raise ValueError(f"{_MARK} is no value")
        return value

    return json.loads(skeleton, strict=False, parse_constant=constant)


def _skeleton(
    parts: Iterable[bytes], spool: BinaryIO, strings: list[LongString], counts: Counts
) -> bytearray:
    """The text with a mark for each long string, whose bytes are added to the spool and to `strings`."""
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
    """Where the last character of a JSON string's inside ends that is not cut in two: neither an escape, nor the
    two escapes of a surrogate pair."""
    at = max(0, len(text) - 12)
    while at and text[at - 1] == "\\":
        at -= 1
    while found := _ESCAPE.match(text, at):
        at = found.end()
    return at
