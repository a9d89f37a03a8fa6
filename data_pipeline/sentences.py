"""A document in, its sentences out.

`lines`: each line that holds more than white space is a sentence, as it stands.
`split`: sentencex (the Wikimedia foundation's splitter) finds the sentences of running text. A blank line ends a
sentence; a single line feed within a paragraph is a space, and so is any white space beyond ASCII, as it is to
BERT's tokenizer. No sentence is longer than LONGEST characters: text that goes on without an end is cut at the
last space before that, or, without a space, there.

Chosen by measurement, on one core and 20 MB of novels: sentencex 99 MB/s, blingfire 20; both know the usual
abbreviations, but blingfire parts '"Why?" asked Tom.' at the question mark and misses most ends after ' or ”.
"""

import re
from collections.abc import Iterator

import sentencex

from data_pipeline.counts import Counts
from data_pipeline.records import Document, Sentences
from data_pipeline.settings import DataSettings

LONGEST = 4_000
"""Most characters of one sentence, and of a paragraph that the splitter sees at once: its time grows with the square
of a paragraph's quotation marks, and of its sentences in Chinese (10 MB/s in windows of this size)."""
PASSAGE = 1 << 20
"""Characters taken at a time, about: many paragraphs for one call of the splitter, little memory."""

# Beyond ASCII and its control characters, str.isspace knows these; sentencex panics at some of them.
_WIDE_SPACES = [chr(c) for c in range(0x80, 0x3001) if chr(c).isspace()]
_BLANK_LINES = re.compile(r"\n[^\S\n]*\n\s*")


def split(document: Document, settings: DataSettings, counts: Counts, language: str = "en") -> Sentences:
    """The document's sentences by `settings.sentences`; `language` (ISO 639) chooses the abbreviations."""
    find = _lines if settings.sentences == "lines" else _running_text
    sentences = list(find(document.text, language))
    counts.sentences += len(sentences)
    return Sentences(document.id, sentences)


def _lines(text: str, _language: str) -> Iterator[str]:
    return filter(None, map(str.strip, text.split("\n")))


def _running_text(text: str, language: str) -> Iterator[str]:
    for passage in _passages(text):
        for space in _WIDE_SPACES:
            if space in passage:
                passage = passage.replace(space, " ")
        paragraphs = [p.replace("\n", " ") for p in _BLANK_LINES.split(passage)]
        if max(map(len, paragraphs)) <= LONGEST:
            yield from _segment("\n\n".join(paragraphs), language)
            continue
        for paragraph in paragraphs:
            yield from _long_paragraph(paragraph, language)


def _passages(text: str) -> Iterator[str]:
    """`text` cut at blank lines into pieces of PASSAGE characters and what is left of a paragraph."""
    start = 0
    while len(text) - start > PASSAGE and (gap := _BLANK_LINES.search(text, start + PASSAGE)):
        yield text[start : gap.start()]
        start = gap.end()
    yield text[start:]


def _long_paragraph(paragraph: str, language: str) -> Iterator[str]:
    """Sentences of a paragraph, seen through a window; the last one of a window, perhaps cut, begins the next."""
    start = 0
    while len(paragraph) - start > LONGEST:
        window = paragraph[start : start + LONGEST]
        *whole, last = sentencex.segment(language, window)
        if not "".join(whole).strip():  # one sentence fills the window
            space = window.rfind(" ")
            whole, last = [window[: space + 1] or window], window[space + 1 :] if space >= 0 else ""
        yield from _visible(whole)
        start += LONGEST - len(last)
    yield from _segment(paragraph[start:], language)


def _segment(text: str, language: str) -> Iterator[str]:
    return _visible(sentencex.segment(language, text))


def _visible(sentences: list[str]) -> Iterator[str]:
    return filter(None, map(str.strip, sentences))
