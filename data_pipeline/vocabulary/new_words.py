"""Choose the words of a text that a vocabulary cuts into many pieces, and measure what they save as entries of it.

What a word saves is the number of times it occurs, times the pieces it is cut into less one. The words that save the
most are chosen, equal ones in the order of their characters: a function of the text alone.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Self

from data_pipeline.records import Document
from data_pipeline.settings import VocabularySettings
from data_pipeline.vocabulary.base import Vocabulary

LONGEST_WORD = 64
"""Maximum characters of a new word: longer ones are links, codes and text without spaces."""
_GROUP = 1 << 12  # words encoded together


class NewWord(NamedTuple):
    """A word, as the piece that it is to become."""

    piece: str
    occurrences: int
    cut_into: int
    """Pieces of the old vocabulary; for a word with a character that it does not know, its characters."""

    @property
    def saved(self) -> int:
        """Tokens that its entry saves in the text."""
        return self.occurrences * (self.cut_into - 1)


@dataclass(frozen=True)
class WordCounts:
    """The distinct words of a text, separated by ASCII white space, in the order of their bytes, with how often each
    occurs."""

    counts: dict[str, int]

    @classmethod
    def of(cls, documents: Iterable[Document]) -> Self:
        """Count the words of the documents."""
        counts: Counter[bytes] = Counter()
        for document in documents:
            counts.update(document.text.encode("utf-8", "replace").split())
        return cls({word.decode(): counts[word] for word in sorted(counts)})

    @property
    def total(self) -> int:
        """Words of the text."""
        return sum(self.counts.values())


class Savings(NamedTuple):
    """What new words save in a text."""

    words: int
    tokens_before: int
    tokens_after: int
    cut_otherwise: int
    """Words of the text that hold no new word and are cut otherwise than before."""


def choose(text: WordCounts, vocabulary: Vocabulary, settings: VocabularySettings) -> list[NewWord]:
    """Choose at most `settings.new_words` words of the text, each seen at least `settings.min_frequency` times, that
    save at least `settings.min_gain` tokens in a million words as entries of `vocabulary`; by descending savings."""
    occurrences: Counter[str] = Counter()
    for word, ids in zip(text.counts, _encoded(vocabulary, text.counts), strict=True):
        if len(ids) > 1 or vocabulary.unk in ids:
            for piece in _whole_words(vocabulary, word):
                occurrences[piece] += text.counts[word]
    least = settings.min_gain * text.total / 1_000_000
    found = (
        NewWord(piece, count, _cut_into(vocabulary, piece))
        for piece, count in occurrences.items()
        if count >= settings.min_frequency and piece not in vocabulary.ids
    )
    worth = [word for word in found if word.saved >= max(least, 1)]
    return sorted(worth, key=lambda word: (-word.saved, word.piece))[: settings.new_words]


def measure(text: WordCounts, chosen: list[NewWord], old: Vocabulary, extended: Vocabulary) -> Savings:
    """Count the text's tokens in `old` and in `extended`, which holds the `chosen` words too."""
    before = after = otherwise = 0
    new = {word.piece for word in chosen}
    both = zip(_encoded(old, text.counts), _encoded(extended, text.counts), strict=True)
    for (word, count), (then, now) in zip(text.counts.items(), both, strict=True):
        before += count * len(then)
        after += count * len(now)
        if then != now and new.isdisjoint(_whole_words(extended, word)):
            otherwise += count
    return Savings(text.total, before, after, otherwise)


def old_pieces(old: Vocabulary, extended: Vocabulary) -> list[list[int]]:
    """Return for each id of `extended` that `old` lacks, in their order, the ids of `old` that its text is cut into;
    none where these hold nothing of the text, which is unknown: then they are the same for all such words."""
    cuts = (ids_of(old, piece) for piece in extended.tokens[old.size :])
    return [ids if any(_has_text(old, number) for number in ids) else [] for ids in cuts]


def ids_of(vocabulary: Vocabulary, piece: str) -> list[int]:
    """Return the ids that the text of a piece of another vocabulary is cut into."""
    return [token.id for token in vocabulary.tokenizer.model.tokenize(piece)]


def _has_text(vocabulary: Vocabulary, number: int) -> bool:
    """Return whether an entry is more than the unknown token, or the mark of a word's beginning, alone."""
    return number != vocabulary.unk and text_of(vocabulary, vocabulary.tokens[number]) != ""


def text_of(vocabulary: Vocabulary, piece: str) -> str:
    """Return the text of a piece, without the mark of a word's beginning."""
    return str(vocabulary.tokenizer.decoder.decode([piece])).strip()


def _whole_words(vocabulary: Vocabulary, word: str) -> Iterator[str]:
    """Yield the pieces that would hold the words in `word`, text without white space, each as a whole."""
    tokenizer = vocabulary.tokenizer
    text = tokenizer.normalizer.normalize_str(vocabulary.cuts.before + word)
    for pre_token, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text):
        piece = vocabulary.whole_word(pre_token)
        if piece and len(piece) <= LONGEST_WORD and any(c.isalpha() for c in text_of(vocabulary, piece)):
            yield piece


def _cut_into(vocabulary: Vocabulary, piece: str) -> int:
    ids = ids_of(vocabulary, piece)
    return len(text_of(vocabulary, piece)) if vocabulary.unk in ids else len(ids)


def _encoded(vocabulary: Vocabulary, words: Iterable[str]) -> Iterator[list[int]]:
    """Yield the ids of each word, encoded as if alone."""
    listed = [vocabulary.cuts.before + word for word in words]
    for first in range(0, len(listed), _GROUP):
        texts = listed[first : first + _GROUP]
        for encoding in vocabulary.tokenizer.encode_batch_fast(texts, add_special_tokens=False):
            yield encoding.ids
