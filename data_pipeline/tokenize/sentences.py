"""Split a document into sentences as they are found; only some passages of it are in memory at a time.

`lines`: each line that holds more than white space is a sentence, as it stands, but for a line of more than
LONGEST_LINE characters, which is cut as text without an end is.
`split`: sentencex (the Wikimedia foundation's splitter) finds the sentences of running text. A blank line ends a
sentence; a single line feed within a paragraph is a space, and so is any white space beyond ASCII, as it is to
BERT's tokenizer. No sentence is longer than LONGEST characters: text that goes on without an end is cut at the
last space before that, or, without a space, there.

Where a document is cut into passages changes nothing: sentences follow from its text alone.

Chosen by measurement, on one core and 20 MB of novels: sentencex 99 MB/s, blingfire 20; both know the usual
abbreviations, but blingfire parts '"Why?" asked Tom.' at the question mark and misses most ends after ' or ”.
"""

from collections.abc import Iterable, Iterator
from itertools import chain

import sentencex

from data_pipeline.records import Document, Sentences
from data_pipeline.settings import DataSettings, language_of
from data_pipeline.sources.cleaning import BLANK_LINES
from data_pipeline.sources.read_counts import Counts

LONGEST = 4_000
"""Most characters of one sentence, and of a paragraph that the splitter sees at once: its time grows with the square
of a paragraph's quotation marks, and of its sentences in Chinese (10 MB/s in windows of this size)."""
LONGEST_LINE = 1 << 20
"""Most characters of one sentence where lines are sentences."""
PASSAGE = 1 << 20
"""Characters taken at a time, about: many paragraphs for one call of the splitter, little memory."""

# Beyond ASCII and its control characters, str.isspace knows these; sentencex panics at some of them.
_WIDE_SPACES = [chr(c) for c in range(0x80, 0x3001) if chr(c).isspace()]


def split(document: Document, settings: DataSettings, counts: Counts) -> Sentences:
    """The document's sentences by `settings.sentences`; the language of its source chooses the abbreviations.
    `counts` is added to as the sentences are read."""
    find = _lines if settings.sentences == "lines" else _running_text
    found = find(document.passages, language_of(settings, document.source))
    return Sentences(document.id, chain.from_iterable(_counted(found, counts)), document.source)


def _counted(batches: Iterable[list[str]], counts: Counts) -> Iterator[list[str]]:
    for batch in batches:
        counts.sentences += len(batch)
        yield batch


def _lines(passages: Iterable[str], _language: str) -> Iterator[list[str]]:
    rest = ""
    for passage in passages:
        *lines, rest = (rest + passage).split("\n")
        if max(map(len, lines), default=0) > LONGEST_LINE:
            lines = [piece for line in lines for piece in _cut(line)]
        yield _visible(lines)
        *pieces, rest = _cut(rest)
        yield _visible(pieces)
    yield _visible([rest])


def _cut(line: str) -> Iterator[str]:
    """`line` in pieces of at most LONGEST_LINE characters: one, nearly always."""
    while len(line) > LONGEST_LINE:
        end = line.rfind(" ", 0, LONGEST_LINE) + 1 or LONGEST_LINE
        yield line[:end]
        line = line[end:]
    yield line


def _running_text(passages: Iterable[str], language: str) -> Iterator[list[str]]:
    passages = map(_plain_spaces, passages)
    rest = next(passages, "")  # begins with a paragraph, or with what is left of a long one
    in_gap = False  # the text so far ends in blank lines, which may go on
    for passage in passages:
        if in_gap:
            passage = passage.lstrip()
        in_gap = in_gap and not passage
        rest += passage
        if len(rest) < PASSAGE:
            continue
        *paragraphs, rest = BLANK_LINES.split(rest)
        in_gap = not rest
        yield from _segments(paragraphs, language)
        # White space at the end may prove to be a blank line, which is no part of the paragraph.
        solid = len(rest.rstrip())
        sentences, done = _windows(rest[:solid].replace("\n", " "), language)
        yield sentences
        rest = rest[done:solid] + _bounded(rest[solid:])
    yield from _segments(BLANK_LINES.split(rest), language)


def _plain_spaces(text: str) -> str:
    if not text.isascii():
        for space in _WIDE_SPACES:
            if space in text:
                text = text.replace(space, " ")
    return text


def _bounded(space: str) -> str:
    """White space without a blank line that the windows go over in the same way, at most 3 x LONGEST long."""
    if len(space) <= 3 * LONGEST:
        return space
    return ("\n" if "\n" in space else " ") + " " * (2 * LONGEST - 1 + len(space) % LONGEST)


def _segments(paragraphs: list[str], language: str) -> Iterator[list[str]]:
    """The sentences of whole paragraphs: of many in one call, of one that is too long through windows."""
    group: list[str] = []
    size = 0
    for paragraph in paragraphs:
        if len(paragraph) > LONGEST or size > PASSAGE:
            yield _segment("\n\n".join(group), language)
            group, size = [], 0
        paragraph = paragraph.replace("\n", " ")
        if len(paragraph) > LONGEST:
            sentences, done = _windows(paragraph, language)
            yield sentences
            paragraph = paragraph[done:]
        group.append(paragraph)
        size += len(paragraph)
    yield _segment("\n\n".join(group), language)


def _windows(paragraph: str, language: str) -> tuple[list[str], int]:
    """Sentences of a paragraph, seen through a window, and where the rest begins, LONGEST characters at most; the
    last sentence of a window, perhaps cut, begins the next."""
    sentences: list[str] = []
    start = 0
    while len(paragraph) - start > LONGEST:
        window = paragraph[start : start + LONGEST]
        *whole, last = sentencex.segment(language, window)
        if not "".join(whole).strip():  # one sentence fills the window
            space = window.rfind(" ")
            whole, last = [window[: space + 1] or window], window[space + 1 :] if space >= 0 else ""
        sentences += _visible(whole)
        start += LONGEST - len(last)
    return sentences, start


def _segment(text: str, language: str) -> list[str]:
    return _visible(sentencex.segment(language, text))


def _visible(sentences: Iterable[str]) -> list[str]:
    return list(filter(None, map(str.strip, sentences)))
