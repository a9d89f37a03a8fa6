"""Tokenize documents that are split into sentences, batch by batch, at many times the tokenizers library's speed.

A batch is a number of characters, of many small documents or a part of a long one.

The ids are those of the library. `WordCache` asks it once for each distinct word and caches the ids. They are equal
because nothing in BERT's pipeline crosses the borders used here, ASCII white space and characters that are always words
by themselves:

- clean_text, the spacing of Chinese characters and lower-casing act on each character independently (the library
  lower-cases by `char::to_lowercase`, which knows no final sigma);
- the accent stripper's NFD reorders only runs of combining marks, and every border is a character of combining class 0
  that no decomposition changes;
- the pre-tokenizer cuts at every border, and WordPiece sees one word at a time;
- special tokens in the text are text (see data_pipeline/vocabulary/base.py).
"""

from array import array
from collections.abc import Iterable, Iterator
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from data_pipeline.io.files import open_to_write, writing
from data_pipeline.io.npy import offsets_of
from data_pipeline.records import Corpus, Sentences
from data_pipeline.rng import text_key
from data_pipeline.sources.cleaning import Counts
from data_pipeline.tokenize.word_table import (
    EMPTY,
    LONGEST_CACHED,
    ROOM,
    WINDOW,
    byte_kinds,
    count_ids,
    fill_slots,
    find_words,
    write_ids,
)
from data_pipeline.vocabulary.base import Vocabulary

# Encode words with the tokenizers library in a few long calls, since a call costs more than encoding a word. Words of
# ASCII letters are passed as one text, separated by spaces: no normaliser or pre-tokenizer joins or splits them. All
# others are passed as pre-tokenized input, which the library processes one by one. In both cases it reports the word of
# each id.

_GROUP = 512  # words per text


def encode_words(
    tokenizer: Tokenizer, words: list[bytes], dtype: np.dtype, before: str = ""
) -> tuple[NDArray, NDArray[np.int64]]:
    """Return the ids of words (UTF-8), each encoded after `before` (nothing or a space) as if alone and without special
    tokens: flat, and where the ids of each word begin (words + 1)."""
    plain = np.fromiter((word.isalpha() and word.isascii() for word in words), np.bool_, len(words))
    ids, lengths = np.empty(0, dtype), np.zeros(len(words), np.int64)
    places = [np.flatnonzero(plain), np.flatnonzero(~plain)]
    parts = []
    for chosen, together in zip(places, (True, False), strict=True):
        texts = [words[n].decode("utf-8") for n in chosen]
        for first, found, counts in _encoded(tokenizer, texts, before, together):
            lengths[chosen[first : first + len(counts)]] = counts
            parts.append(found)
    starts = offsets_of(lengths)
    if not parts:
        return ids, starts
    # the ids are in the order of `places`: reorder them by word
    order = np.argsort(np.repeat(np.concatenate(places), lengths[np.concatenate(places)]), kind="stable")
    return np.concatenate(parts).astype(dtype)[order], starts


def _encoded(
    tokenizer: Tokenizer, texts: list[str], before: str, together: bool
) -> Iterator[tuple[int, NDArray, NDArray[np.int64]]]:
    """Yield for each group of texts: index of its first text, ids, and the number of ids per text."""
    # encode_batch_fast does not report the word of an id
    groups = [[before + text for text in texts[i : i + _GROUP]] for i in range(0, len(texts), _GROUP)]
    if together:
        separator = "" if before else " "
        lines = [separator.join(group) for group in groups]
        encodings = tokenizer.encode_batch(lines, add_special_tokens=False)
    else:
        encodings = tokenizer.encode_batch(groups, is_pretokenized=True, add_special_tokens=False)
    for number, (group, encoding) in enumerate(zip(groups, encodings, strict=True)):
        counts = np.bincount(np.array(encoding.word_ids, np.int64), minlength=len(group))
        yield number * _GROUP, np.array(encoding.ids, np.uint32), counts


# Encode sentences by the cached ids of their words.

MOST_WORDS = 1 << 20
"""Maximum words in the cache; when it is full it is emptied. It takes 130 MB at most, usually less than half."""
_CACHE_GROUP = 1 << 14  # sentences encoded together, however long their document
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
        for first in range(0, len(sentences), _CACHE_GROUP):
            data, position = _joined(sentences[first : first + _CACHE_GROUP]), 0
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


# Tokenize documents into the columns of a Corpus.

BATCH_CHARACTERS = 4 << 20
STRING_BYTES = 64
"""Memory per sentence besides its characters, counted so that many short sentences do not exceed the batch size."""
_SOME = 1024  # sentences taken from a document at a time


def tokenize(
    documents: Iterable[Sentences], cache: WordCache, counts: Counts, spool: Path | None = None
) -> Corpus:
    """Tokenize the documents, in order, keyed by the hash of their ids. Sentences and documents without tokens are
    dropped; `counts` is updated. With a path `spool`, the tokens are memory-mapped from that new file, and memory
    grows by about ten bytes per sentence and per document."""
    columns = _Columns(cache, counts, spool)
    for document in documents:
        columns.begin(document)
        sentences = iter(document.sentences)
        while some := list(islice(sentences, _SOME)):
            columns.add(some)
            if len(some) < _SOME:
                break
    return columns.corpus()


class _Columns:
    """The columns of a corpus under construction."""

    def __init__(self, cache: WordCache, counts: Counts, spool: Path | None) -> None:
        self._cache, self._counts, self._spool = cache, counts, spool
        cache.take_long_words()  # of other text
        self._keys, self._sources = array("Q"), array("H")
        self._begins = array("q")  # number of each document's first sentence
        self._seen = 0  # sentences so far, including those without a token
        self._waiting: list[str] = []
        self._characters = 0
        self._lengths = [np.empty(0, np.int32)]
        self._tokens = [np.empty(0, cache.vocabulary.dtype)]
        if spool:
            spool.touch(exist_ok=False)

    def begin(self, document: Sentences) -> None:
        self._keys.append(text_key(document.id))
        self._sources.append(document.source)
        self._begins.append(self._seen)

    def add(self, sentences: list[str]) -> None:
        """Add sentences of the document begun last."""
        self._seen += len(sentences)
        self._waiting += sentences
        self._characters += sum(map(len, sentences)) + STRING_BYTES * len(sentences)
        if self._characters >= BATCH_CHARACTERS:
            self._encode()

    def _encode(self) -> None:
        ids, lengths = self._cache.encode(self._waiting)
        self._waiting, self._characters = [], 0
        self._lengths.append(lengths.astype(np.int32))
        self._counts.tokens += len(ids)
        self._counts.unknown_tokens += int((ids == self._cache.vocabulary.unk).sum())
        self._counts.unknown_long_words += self._cache.take_long_words()
        if self._spool:
            with writing(self._spool), open_to_write(self._spool, "ab") as file:
                file.write(
                    np.ascontiguousarray(ids).data
                )  # on a full disk, tofile only reports missing bytes
        else:
            self._tokens.append(ids)

    def corpus(self) -> Corpus:
        """Return the corpus; call it only once. Copies of columns are freed as early as possible."""
        if self._waiting:
            self._encode()
        self._begins.append(self._seen)
        borders = np.frombuffer(self._begins, np.int64)
        lengths = np.concatenate(self._lengths)
        self._lengths.clear()
        kept = lengths > 0
        self._counts.empty_sentences += int((~kept).sum())
        sentence_starts = offsets_of(lengths[kept])
        del lengths
        sentences = np.add.reduceat(np.append(kept, False), borders[:-1], dtype=np.int64)
        sentences[borders[:-1] == borders[1:]] = 0  # where reduceat gives the next document's first
        whole = sentences > 0
        self._counts.documents_without_tokens += int((~whole).sum())
        return Corpus(
            tokens=self._all_tokens(),
            sentence_starts=sentence_starts,
            document_starts=offsets_of(sentences[whole]),
            keys=np.frombuffer(self._keys, np.uint64)[_all_or(whole)],
            sources=np.frombuffer(self._sources, np.uint16)[_all_or(whole)],
        )

    def _all_tokens(self) -> NDArray[np.unsignedinteger]:
        if self._spool and self._spool.stat().st_size:  # an empty file cannot be mapped
            return np.memmap(self._spool, self._cache.vocabulary.dtype, "r")
        return np.concatenate(self._tokens)


def _all_or(chosen: NDArray[np.bool_]) -> slice | NDArray[np.bool_]:
    """Return an index for the chosen entries that makes no copy if all are chosen."""
    return slice(None) if chosen.all() else chosen
