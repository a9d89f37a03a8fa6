"""Split a document into a stream of sentences, some paragraphs at a time.

`lines`: each line that holds more than white space is a sentence, unchanged; a line of more than LONGEST_LINE
characters is cut at the last space before that, or, without a space, there.
`split`: sentencex (the Wikimedia foundation's splitter) finds the sentences of running text. A blank line ends a
sentence; a single line feed within a paragraph is a space, and so is non-ASCII white space, as in BERT's tokenizer.
No sentence is longer than LONGEST characters; longer text without a sentence end is cut in the same way.

Chosen by measurement, on one core and 20 MB of novels: sentencex 99 MB/s, blingfire 20 MB/s; both know the usual
abbreviations, but blingfire splits '"Why?" asked Tom.' at the question mark and misses most ends after ' or ”.
"""

from collections.abc import Generator, Iterable, Iterator
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
GROUP = 1 << 20
"""Approximate characters processed at a time: many paragraphs per call of the splitter, little memory."""

# White space by str.isspace beyond ASCII; sentencex panics at some of these characters.
_WIDE_SPACES = [chr(c) for c in range(0x80, 0x3001) if chr(c).isspace()]


def split(document: Document, settings: DataSettings, counts: Counts) -> Sentences:
    """Split the document by `settings.sentences`; the language of its source selects the abbreviations. `counts` is
    updated as the sentences are read."""
    if settings.sentences == "lines":
        batches = _lines(document.text)
    else:
        batches = _running_text(document.text, language_of(settings, document.source))
    return Sentences(document.id, chain.from_iterable(_counted(batches, counts)), document.source)


def _counted(batches: Iterable[list[str]], counts: Counts) -> Iterator[list[str]]:
    for batch in batches:
        counts.sentences += len(batch)
        yield batch


def _lines(text: str) -> Iterator[list[str]]:
    at = 0
    while at < len(text):
        end = text.find("\n", at + GROUP) + 1 or len(text)
        lines = text[at:end].split("\n")
        if max(map(len, lines)) > LONGEST_LINE:
            lines = [piece for line in lines for piece in _cut(line)]
        yield _visible(lines)
        at = end


def _cut(line: str) -> Iterator[str]:
    """Cut `line` into pieces of at most LONGEST_LINE characters: nearly always one."""
    at = 0
    while len(line) - at > LONGEST_LINE:
        end = line.rfind(" ", at, at + LONGEST_LINE) + 1 or at + LONGEST_LINE
        yield line[at:end]
        at = end
    yield line[at:]


def _running_text(text: str, language: str) -> Iterator[list[str]]:
    return _segments(_paragraphs(_plain_spaces(text)), language)


def _paragraphs(text: str) -> Iterator[str]:
    at = 0
    for gap in BLANK_LINES.finditer(text):
        yield text[at : gap.start()]
        at = gap.end()
    yield text[at:]


def _plain_spaces(text: str) -> str:
    if not text.isascii():
        for space in _WIDE_SPACES:
            if space in text:
                text = text.replace(space, " ")
    return text


def _segments(paragraphs: Iterable[str], language: str) -> Iterator[list[str]]:
    """Yield the sentences of whole paragraphs: many in one call of the splitter, one that is too long in windows."""
    group: list[str] = []
    size = 0
    for paragraph in paragraphs:
        if len(paragraph) > LONGEST or size > GROUP:
            yield _segment("\n\n".join(group), language)
            group, size = [], 0
        paragraph = paragraph.replace("\n", " ")
        if len(paragraph) > LONGEST:
            paragraph = yield from _windows(paragraph, language)
        group.append(paragraph)
        size += len(paragraph)
    yield _segment("\n\n".join(group), language)


def _windows(paragraph: str, language: str) -> Generator[list[str], None, str]:
    """Yield the sentences of a long paragraph, window by window; return the rest, of at most LONGEST characters. The
    last sentence of a window, perhaps cut, begins the next window."""
    start = 0
    while len(paragraph) - start > LONGEST:
        window = paragraph[start : start + LONGEST]
        *complete, last = sentencex.segment(language, window)
        if not "".join(complete).strip():  # one sentence fills the window
            space = window.rfind(" ")
            complete, last = [window[: space + 1] or window], window[space + 1 :] if space >= 0 else ""
        yield _visible(complete)
        start += LONGEST - len(last)
    return paragraph[start:]


def _segment(text: str, language: str) -> list[str]:
    return _visible(sentencex.segment(language, text))


def _visible(sentences: Iterable[str]) -> list[str]:
    return list(filter(None, map(str.strip, sentences)))
