"""Read the fields of one JSON object that is too long for memory, with long strings as streams.

Strings longer than SHORT are copied unchanged to a spool on disk; the rest of the object is parsed by `json`, with the
same checks as any other object. A long string is decoded when it is read.
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from data_pipeline.sources.cleaning import decode, decoded
from data_pipeline.sources.read_counts import Counts

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
