"""Tokenize documents that are split into sentences, batch by batch.

A batch is a number of characters, of many small documents or a part of a long one.
"""

from array import array
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_pipeline.io.files import open_to_write, writing
from data_pipeline.io.npy import offsets_of
from data_pipeline.records import Corpus, Sentences
from data_pipeline.rng import text_key
from data_pipeline.sources.cleaning import Counts
from data_pipeline.tokenize.word_cache import WordCache

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
