"""Tokenize sentences into the tokenizers library's ids, at many times its speed.

`WordCache` asks the library once for each distinct word and caches the ids. The ids are equal because nothing in
BERT's pipeline crosses the borders used here, ASCII white space and characters that are always words by themselves:

- clean_text, the spacing of Chinese characters and lower-casing act on each character independently (the library
  lower-cases by `char::to_lowercase`, which knows no final sigma);
- the accent stripper's NFD reorders only runs of combining marks, and every border is a character of combining class 0
  that no decomposition changes;
- the pre-tokenizer cuts at every border, and WordPiece sees one word at a time;
- special tokens in the text are text (see vocabulary/wordpiece.py).
"""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from data_pipeline.tokenize.encode_words import encode_words
from data_pipeline.tokenize.word_boundaries import WINDOW, byte_kinds
from data_pipeline.tokenize.word_table import (
    EMPTY,
    LONGEST_CACHED,
    ROOM,
    count_ids,
    fill_slots,
    find_words,
    write_ids,
)
from data_pipeline.vocabulary.base import Vocabulary

MOST_WORDS = 1 << 20
"""Maximum words in the cache; when it is full it is emptied. It takes 130 MB at most, usually less than half."""
_GROUP = 1 << 14  # sentences encoded together, however long their document
_BUFFER_WORDS = 1 << 18
_LONG_WORDS = 1 << 12
_FIRST_SLOTS = 1 << 12


class WordCache:
    """Encodes sentences into the ids that `vocabulary.tokenizer` gives without special tokens. Not thread-safe."""

    def __init__(self, vocabulary: Vocabulary, most_words: int = MOST_WORDS) -> None:
        if most_words < ROOM:
            raise ValueError(f"most_words is {most_words}, expected at least {ROOM}")
        self.vocabulary = vocabulary
        self._most_words = most_words
        self._kinds = byte_kinds(vocabulary.cuts.punctuation, vocabulary.cuts.chinese)
        self._found = np.empty(_BUFFER_WORDS, np.int32)
        self._ends = np.empty(_BUFFER_WORDS, np.int64)
        self._long = np.empty((_LONG_WORDS, 2), np.int64)
        self._batch = tuple(np.empty(ROOM, np.uint64) for _ in range(3))
        self._unknown_long_words = 0
        self._forget()

    def encode(self, sentences: list[str]) -> tuple[NDArray[np.unsignedinteger], NDArray[np.int64]]:
        """Return the ids of all sentences, flat, of `vocabulary.dtype`, and the number of ids per sentence."""
        parts, ends, total = [np.empty(0, self.vocabulary.dtype)], [np.zeros(1, np.int64)], 0
        for first in range(0, len(sentences), _GROUP):
            data, position = _joined(sentences[first : first + _GROUP]), 0
            while position < len(data) - WINDOW:
                position, ids, ended = self._next(data, position)
                parts.append(ids)
                ends.append(ended + total)
                total += len(ids)
        borders = np.concatenate(ends)
        return np.concatenate(parts), borders[1:] - borders[:-1]

    def take_long_words(self) -> int:
        """Return how many words, since the last call, were unknown because they have more characters than the
        vocabulary cuts."""
        count, self._unknown_long_words = self._unknown_long_words, 0
        return count

    def _next(self, data: NDArray[np.uint8], position: int) -> tuple[int, NDArray, NDArray[np.int64]]:
        """Encode as much from `position` on as the buffers hold; return the new position, the ids, and the number of
        ids before each sentence's end."""
        self._make_room()
        table = (self._slots, self._arena, self._starts)
        position, known, words, sentences, longs = find_words(
            data, position, self._kinds, table, self._known, self._found, self._ends, self._long, self._batch
        )
        self._learn(known)
        long_words = [data[a:b].tobytes() for a, b in self._long[:longs]]
        long_ids, long_starts = self._encode(long_words)
        self._note_unknown(long_words, long_ids, long_starts)
        found, ends = self._found[:words], self._ends[:sentences]
        ended = np.empty(sentences, np.int64)
        out = np.empty(count_ids(found, ends, self._id_starts, long_starts, ended), self.vocabulary.dtype)
        write_ids(found, self._ids, self._id_starts, long_ids, long_starts, out)
        return position, out, ended

    def _note_unknown(self, words: list[bytes], ids: NDArray, starts: NDArray[np.int64]) -> None:
        """Count the unknown ids in words of more characters than the vocabulary cuts."""
        longest = self.vocabulary.longest_word
        for number, word in enumerate(words):
            if longest and len(word) > longest and len(word.decode("utf-8")) > longest:
                own = ids[starts[number] : starts[number + 1]]
                self._unknown_long_words += int((own == self.vocabulary.unk).sum())

    def _forget(self) -> None:
        self._known = 0
        self._ids = np.empty(0, self.vocabulary.dtype)
        self._id_starts = np.zeros(self._most_words + 1, np.int64)
        # Bytes of the words, and the start of each word; untouched pages cost no memory.
        self._arena = np.empty(self._most_words * LONGEST_CACHED + WINDOW, np.uint8)
        self._starts = np.zeros(self._most_words + 1, np.int64)
        self._slots = np.full((_FIRST_SLOTS, 2), EMPTY)

    def _make_room(self) -> None:
        """Make room for more words; the table is kept as small as possible, since access to it is random."""
        if self._known + ROOM > self._most_words:
            self._forget()
        elif 2 * (self._known + ROOM) > len(self._slots):
            fewer, self._slots = self._slots, np.full((2 * len(self._slots), 2), EMPTY)
            fill_slots(self._slots, fewer)

    def _learn(self, known: int) -> None:
        """Ask the library for the ids of the words entered since the last call."""
        if known == self._known:
            return
        borders = self._starts[self._known : known + 1].tolist()
        ids, id_starts = self._encode([self._arena[a:b].tobytes() for a, b in pairwise(borders)])
        used = int(self._id_starts[self._known])
        if used + len(ids) > len(self._ids):
            self._ids = np.concatenate([self._ids[:used], np.empty(2 * (used + len(ids)), self._ids.dtype)])
        self._ids[used : used + len(ids)] = ids
        self._id_starts[self._known + 1 : known + 1] = used + id_starts[1:]
        self._known = known

    def _encode(self, words: list[bytes]) -> tuple[NDArray, NDArray[np.int64]]:
        """Return the library's ids of words, flat, and where the ids of each word begin."""
        tokenizer, before = self.vocabulary.tokenizer, self.vocabulary.cuts.before
        return encode_words(tokenizer, words, self.vocabulary.dtype, before)


def _joined(sentences: list[str]) -> NDArray[np.uint8]:
    """Join the sentences as UTF-8, each ended by a line feed, with WINDOW spaces at the end."""
    end = "\n" + WINDOW * " "
    text = "\n".join(sentences) + end
    if text.count("\n") > len(sentences):  # to BERT a line feed within a sentence is white space
        text = "\n".join(s.replace("\n", " ") for s in sentences) + end
    return np.frombuffer(text.encode("utf-8"), np.uint8)
