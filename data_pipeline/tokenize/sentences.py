"""Split a document into a stream of sentences, with only some passages in memory at a time.

`lines`: each line that holds more than white space is a sentence, unchanged; a line of more than LONGEST_LINE
characters is cut at the last space before that, or, without a space, there.
`split`: sentencex (the Wikimedia foundation's splitter) finds the sentences of running text. A blank line ends a
sentence; a single line feed within a paragraph is a space, and so is non-ASCII white space, as in BERT's tokenizer.
No sentence is longer than LONGEST characters; longer text without a sentence end is cut in the same way.

Sentences depend only on the document's text, not on how it is cut into passages.

Chosen by measurement, on one core and 20 MB of novels: sentencex 99 MB/s, blingfire 20 MB/s; both know the usual
abbreviations, but blingfire splits '"Why?" asked Tom.' at the question mark and misses most ends after ' or ”.
"""

from collections.abc import Iterable, Iterator
from itertools import chain

import sentencex

from data_pipeline.records import Document, Sentences
from data_pipeline.settings import DataSettings, language_of
from data_pipeline.sources.cleaning import BLANK_LINES, Counts

LONGEST = 4_000
"""Maximum characters of a sentence, and of a paragraph passed to the splitter at once: its time is quadratic in a
paragraph's quotation marks, and in its sentences in Chinese (10 MB/s in windows of this size)."""
LONGEST_LINE = 1 << 20
"""Maximum characters of a sentence if lines are sentences."""
PASSAGE = 1 << 20
"""Approximate characters processed at a time: many paragraphs per call of the splitter, little memory."""

# White space by str.isspace beyond ASCII; sentencex panics at some of these characters.
_WIDE_SPACES = [chr(c) for c in range(0x80, 0x3001) if chr(c).isspace()]


def split(document: Document, settings: DataSettings, counts: Counts) -> Sentences:
    """Split the document by `settings.sentences`; the language of its source selects the abbreviations. `counts` is
    updated as the sentences are read."""
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
    """Cut `line` into pieces of at most LONGEST_LINE characters: nearly always one."""
    while len(line) > LONGEST_LINE:
        end = line.rfind(" ", 0, LONGEST_LINE) + 1 or LONGEST_LINE
        yield line[:end]
        line = line[end:]
    yield line


def _running_text(passages: Iterable[str], language: str) -> Iterator[list[str]]:
    passages = map(_plain_spaces, passages)
    rest = next(passages, "")  # begins with a paragraph, or with the rest of a long one
    in_gap = False  # the text so far ends in blank lines, which may continue
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
        # White space at the end may turn out to be a blank line, which is not part of the paragraph.
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
    """Shorten white space without a blank line to at most 3 x LONGEST, such that the windows cut it the same way."""
    if len(space) <= 3 * LONGEST:
        return space
    return ("\n" if "\n" in space else " ") + " " * (2 * LONGEST - 1 + len(space) % LONGEST)


def _segments(paragraphs: list[str], language: str) -> Iterator[list[str]]:
    """Yield the sentences of whole paragraphs: many in one call of the splitter, one that is too long in windows."""
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
    """Split a long paragraph in windows; return the sentences, and where the rest, of at most LONGEST characters,
    begins. The last sentence of a window, perhaps cut, begins the next window."""
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
