"""Judge whether a vocabulary fits a text: by unknown tokens, by single characters, by words that lose their marks.

A text in which most tokens are unknown teaches nothing, and a shard of it looks like any other. So `prepare` judges a
sample of the text before it works for hours, and the counts of the tokenized text before it plans a shard; `vocab`
judges what it has trained.
"""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from data_pipeline.errors import UserError
from data_pipeline.sources.cleaning import Counts
from data_pipeline.vocabulary.base import Vocabulary

WARN_UNKNOWN = 0.05
"""Share of unknown tokens above which `prepare` warns."""
REFUSE_UNKNOWN = 0.5
"""Share of unknown tokens above which it refuses."""
WARN_STRIPPED = 0.01
"""Share of words that lose marks above which `vocab` and `prepare` warn."""
WARNING = "warning: "
CHECKED_CHARACTERS = 1 << 18
"""Characters of text encoded to judge a trained vocabulary: less than a second."""
COARSE_SHARE = 0.8
"""Maximum share of word pieces that may be single characters or unknown."""


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
        f"{shown}: `maskmill vocab` with vocabulary.strip_accents=false trains one that keeps them"
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


def trained_fit(vocabulary: Vocabulary, text: str, size: int) -> Iterator[str]:
    """Say what speaks against a vocabulary trained with vocabulary.size=`size` on text that begins with `text`."""
    encoding = vocabulary.tokenizer.encode(text[:CHECKED_CHARACTERS], add_special_tokens=False)
    offsets, ids = encoding.offsets, encoding.ids  # each access makes new lists
    words: dict[int, list[int]] = {}
    for piece, word in enumerate(encoding.word_ids):
        if word is not None:
            words.setdefault(word, []).append(piece)
    unknown = [offsets[piece] for piece, number in enumerate(ids) if number == vocabulary.unk]
    long = sum(stop - start > vocabulary.longest_word > 0 for start, stop in unknown)
    reading = {"tokens": len(ids), "unknown_tokens": len(unknown), "unknown_long_words": long}
    share = _coarseness(text, words, offsets, ids, vocabulary.unk)
    # long words are unknown to a vocabulary of any size
    if share > COARSE_SHARE and 2 * long <= len(unknown):
        yield (
            f"vocabulary.size={size} leaves little but single characters: {share:.0%} of the pieces of the "
            "text's words are single characters or unknown; a larger vocabulary.size has words"
        )
    elif (note := unknown_note(reading, "the tokens of the text that was learnt from")).startswith(WARNING):
        yield note
    if vocabulary.strips_accents and (note := marks_note(stripped([text]))):
        yield note


def _coarseness(
    text: str, words: Mapping[int, list[int]], offsets: list[tuple[int, int]], ids: list[int], unknown: int
) -> float:
    """Compute the share of single-character and unknown pieces among the pieces of the words of several characters in
    `text`; 0 if there are no such words, as in Chinese. `words`: the pieces of each."""
    pieces = single = 0
    for members in words.values():
        spans = [_visible(text, *offsets[piece]) for piece in members]
        if max(stop for _, stop in spans) - min(start for start, _ in spans) > 1:
            pieces += len(members)
            single += sum(
                stop - start <= 1 or ids[piece] == unknown
                for piece, (start, stop) in zip(members, spans, strict=True)
            )
    return single / max(pieces, 1)


def _visible(text: str, start: int, stop: int) -> tuple[int, int]:
    """Return the span without the white space that a piece begins with."""
    while start < stop and text[start].isspace():
        start += 1
    return start, stop
