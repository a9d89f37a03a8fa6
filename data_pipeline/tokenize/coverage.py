"""Judge whether a vocabulary fits a text: how many of its tokens are unknown, and how many words lose their marks.

A text in which most tokens are unknown teaches nothing, and a shard of it looks like any other. So `prepare` looks at
the beginnings of some parts of the sources before it works for hours, and at the counts of the tokenized text before
it plans a shard.
"""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from data_pipeline.errors import UserError
from data_pipeline.records import Document
from data_pipeline.settings import DataSettings
from data_pipeline.sources.discover import read
from data_pipeline.sources.read_counts import Counts
from data_pipeline.sources.source_file import SourceFile
from data_pipeline.tokenize.sentences import split
from data_pipeline.tokenize.tokenize import tokenize
from data_pipeline.tokenize.word_cache import WordCache
from data_pipeline.vocabulary.base import Vocabulary

WARN_UNKNOWN = 0.05
"""Share of unknown tokens above which `prepare` warns."""
REFUSE_UNKNOWN = 0.5
"""Share of unknown tokens above which it refuses."""
WARN_STRIPPED = 0.01
"""Share of words that lose marks above which `vocab` and `prepare` warn."""
WARNING = "warning: "
SAMPLED_PARTS = 16
SAMPLED_CHARACTERS = 1 << 16
"""Characters read from the beginning of each sampled part: less than a second for all of them."""


class Stripped(NamedTuple):
    """How many words of a text a vocabulary takes without their marks."""

    words: int
    changed: int
    example: str = ""
    """One of them."""


class Fit(NamedTuple):
    """How a vocabulary fits a sample of a text."""

    counts: Counts
    marks: Stripped

    def warnings(self, of: str) -> Iterator[str]:
        """Say what speaks against the vocabulary. `of`: what the counted tokens are."""
        note = unknown_note(self.counts.as_dict(), of)
        if note.startswith(WARNING):
            yield note
        if note := marks_note(self.marks):
            yield note


def sampled_fit(parts: Sequence[SourceFile], settings: DataSettings, vocabulary: Vocabulary) -> Fit:
    """Judge `vocabulary` by the beginnings of at most SAMPLED_PARTS parts, evenly spaced. Raises UserError for a part
    that cannot be read."""
    chosen = [parts[i * len(parts) // SAMPLED_PARTS] for i in range(SAMPLED_PARTS)] if parts else []
    return fit(
        [head for part in dict.fromkeys(chosen) for head in _heads(part, settings)], settings, vocabulary
    )


def fit(documents: Sequence[Document], settings: DataSettings, vocabulary: Vocabulary) -> Fit:
    """Judge `vocabulary` by these documents."""
    counts = Counts()
    tokenize((split(document, settings, counts) for document in documents), WordCache(vocabulary), counts)
    marks = Stripped(0, 0)
    if vocabulary.strips_accents:
        marks = stripped(text for document in documents for text in document.passages)
    return Fit(counts, marks)


def stripped(texts: Iterable[str]) -> Stripped:
    """Count the words, separated by white space, from which accents and other marks would be stripped."""
    words: Counter[str] = Counter()
    for text in texts:
        words.update(text.split())
    changed = {word: count for word, count in words.items() if without_marks(word) != word}
    short = [word for word in changed if len(word) <= 20 and word.isprintable()]
    example = max(short, key=lambda word: (changed[word], word), default="")
    return Stripped(words.total(), sum(changed.values()), example)


def without_marks(word: str) -> str:
    """Return the word as accent stripping leaves it: decomposed, without marks, and composed again."""
    if word.isascii():
        return word
    apart = unicodedata.normalize("NFD", word)
    kept = "".join(c for c in apart if unicodedata.category(c) != "Mn")
    return word if len(kept) == len(apart) else unicodedata.normalize("NFC", kept)


def marks_note(marks: Stripped) -> str:
    """Warn where more than WARN_STRIPPED of the words lose marks; else empty."""
    if marks.changed <= WARN_STRIPPED * marks.words:
        return ""
    shown = f", as in {marks.example}, read as {without_marks(marks.example)}" if marks.example else ""
    return (
        f"{WARNING}the vocabulary strips accents and other marks from {marks.changed / marks.words:.1%} of the words"
        f"{shown}: vocabulary.strip_accents=false keeps them in a vocabulary that `maskmill vocab` trains"
    )


def unknown_share(reading: Mapping[str, Any]) -> float | None:
    """Return the share of unknown tokens from the counts of a preparation; None without a token."""
    tokens, unknown = (_count(reading, name) for name in ("tokens", "unknown_tokens"))
    return unknown / tokens if tokens else None


def refuse_unknown(reading: Mapping[str, Any], vocabulary: str, of: str = "the text's tokens") -> None:
    """Raise UserError where more than REFUSE_UNKNOWN of the tokens are unknown. `vocabulary`: where it is from."""
    share = unknown_share(reading)
    if share is not None and share > REFUSE_UNKNOWN:
        raise UserError(
            f"{_shown(share)} of {of} are unknown to the vocabulary ([UNK]): {_cause(reading)}",
            where=vocabulary,
            expected=f"at most {REFUSE_UNKNOWN:.0%}",
            remedy=_REMEDY,
        )


def unknown_note(reading: Mapping[str, Any], of: str = "the text's tokens") -> str:
    """Say what share of the tokens is unknown, with its likely cause where it is above WARN_UNKNOWN."""
    share = unknown_share(reading)
    if share is None:
        return ""
    said = f"{_shown(share)} of {of} are unknown to the vocabulary ([UNK])"
    return f"{WARNING}{said}: {_cause(reading)}; {_REMEDY}" if share > WARN_UNKNOWN else said


_REMEDY = (
    "train a vocabulary on this text with `maskmill vocab`, with vocabulary.kind=bpe where words are long or "
    "characters many: to it no text is unknown"
)


def _cause(reading: Mapping[str, Any]) -> str:
    unknown, long = (_count(reading, name) for name in ("unknown_tokens", "unknown_long_words"))
    if 2 * long > unknown:
        return "most of them are words longer than WordPiece cuts (vocabularies of BERT: 100 characters)"
    return "the vocabulary is likely to be of another language, script or case"


def _shown(share: float) -> str:
    return f"{share:.3%}" if 0 < share < 0.01 else f"{share:.1%}"


def _count(reading: Mapping[str, Any], name: str) -> int:
    value = reading.get(name, 0)
    return value if isinstance(value, int) else 0


def _heads(part: SourceFile, settings: DataSettings) -> Iterator[Document]:
    """Yield the documents at the beginning of a part, cut after SAMPLED_CHARACTERS characters in all."""
    left = SAMPLED_CHARACTERS
    for document in read(part, settings, Counts()):
        head = document.text[:left]
        yield Document(document.id, head, document.source)
        left -= len(head)
        if left <= 0:
            return
