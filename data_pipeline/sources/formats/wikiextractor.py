"""Read the pages of a part of WikiExtractor's output: the text between `<doc id=...>` and `</doc>`."""

import re
from collections.abc import Iterable, Iterator

from data_pipeline.errors import UserError
from data_pipeline.io.decompress import open_bytes
from data_pipeline.sources.cleaning import decode
from data_pipeline.sources.formats.lines import READ_BYTES, Line, lines_of
from data_pipeline.sources.formats.wikitext import unescaped
from data_pipeline.sources.read_counts import Counts
from data_pipeline.sources.source_file import PASSAGE_BYTES, Record, SourceFile, in_passages

_DOC = re.compile(rb'<doc id="([^"]*)"(?: url="[^"]*")?(?: title="(.*)")?[^>]*>(</doc>)?\s*+$')


def extracted_pages(file: SourceFile, counts: Counts) -> Iterator[Record]:
    """Yield the pages of one part: page id and text, "" where there is but a title. Raises UserError for text outside
    of pages, and if the last page has no end."""
    with open_bytes(file.uri, file.compression) as stream:
        yield from _pages(file, lines_of(file, stream, READ_BYTES), counts)


def _pages(file: SourceFile, lines: Iterator[Line], counts: Counts) -> Iterator[Record]:
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
        body = iter(()) if opening[3] else _until_doc_ends(lines, f"{file.uri}:{number}")
        if file.owns(found):
            name, text, more = in_passages(decode(opening[1], counts), _joined(body), counts)
            if _is_title(text, decode(opening[2] or b"", Counts())):
                text = ""
            yield name, unescaped(text), map(unescaped, more)
        for _ in body:
            pass


def _is_title(text: str, title: str) -> bool:
    """Return whether the text is its own heading only: WikiExtractor writes that of an article without text."""
    return bool(title) and unescaped(text).strip() in (title, unescaped(title))


def _until_doc_ends(lines: Iterator[Line], where: str) -> Iterator[bytes]:
    for _, _, line in lines:
        if line.startswith(b"</doc>"):
            return
        yield line
    raise UserError("the document has no </doc>: the file is cut off", where=where, remedy="make it again")


def _joined(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Join lines into passages of about PASSAGE_BYTES."""
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
