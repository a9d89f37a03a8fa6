"""A Corpus in memory <-> a folder of .npy columns that can be memory-mapped, and many of them merged into one."""

import mmap
from collections.abc import Iterator
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_pipeline.draws import jit
from data_pipeline.mapping import mapped_npy
from data_pipeline.records import Corpus
from data_pipeline.storage import writing

CHUNK = 1 << 25
"""Tokens that `merge` holds in memory at a time, about; a longer document is held whole."""
SENTENCE_COST = 8
"""What a sentence counts in a chunk, in tokens: its start takes so much more memory."""
GAP = 1 << 14
"""Tokens of others between two documents up to which both are read at once."""
BLOCK_TOKENS = 1 << 20
"""Tokens sorted at a time."""


def save_corpus(corpus: Corpus, folder: Path) -> None:
    """Writes the columns into `folder`, which must exist."""
    for column in fields(Corpus):
        _save(folder / f"{column.name}.npy", getattr(corpus, column.name))


def open_corpus(folder: Path) -> Corpus:
    """The corpus in `folder`, memory-mapped: only what is touched is read."""
    return Corpus(**{c.name: mapped_npy(folder / f"{c.name}.npy") for c in fields(Corpus)})


def outline(folder: Path) -> Corpus:
    """The documents of the corpus in `folder` without their tokens, in memory, each as one sentence: what a plan
    needs, and no file stays open."""
    corpus = open_corpus(folder)
    starts = np.array(corpus.sentence_starts[corpus.document_starts])
    return Corpus(
        tokens=np.empty(0, corpus.tokens.dtype),
        sentence_starts=starts,
        document_starts=np.arange(len(starts)),
        keys=np.array(corpus.keys),
        sources=np.array(corpus.sources),
    )


def document_tokens(corpus: Corpus) -> NDArray[np.int64]:
    """Tokens of each document."""
    return token_counts(corpus, slice(0, len(corpus)))


def token_counts(corpus: Corpus, chosen: slice) -> NDArray[np.int64]:
    """Tokens of each document of a run."""
    return np.diff(corpus.sentence_starts[corpus.document_starts[chosen.start : chosen.stop + 1]])


def save_sorted(corpus: Corpus, folder: Path) -> None:
    """Writes the documents into `folder` in the order of their keys, so that a range of keys is a range of documents.
    Memory-mapped tokens are copied block by block: memory does not grow with them."""
    order = np.argsort(corpus.keys, kind="stable")
    _save(folder / "keys.npy", corpus.keys[order])
    _save(folder / "sources.npy", corpus.sources[order])
    _save(folder / "document_starts.npy", _starts(np.diff(corpus.document_starts)[order]))
    sentence_starts = np.zeros(len(corpus.sentence_starts), np.int64)
    _sort_starts(order, corpus.document_starts, corpus.sentence_starts, sentence_starts)
    _save(folder / "sentence_starts.npy", sentence_starts)
    del sentence_starts
    starts = corpus.sentence_starts[corpus.document_starts]
    lengths = np.diff(starts)[order]
    numbers = (np.cumsum(lengths) - lengths) // BLOCK_TOKENS
    with open(folder / "tokens.npy", "wb") as file:
        _header(file, corpus.tokens.dtype, len(corpus.tokens))
        for block in np.split(order, np.flatnonzero(np.diff(numbers)) + 1) if len(order) else []:
            if len(block) == 1:
                for at in range(starts[block[0]], starts[block[0] + 1], BLOCK_TOKENS):
                    file.write(_fresh(corpus.tokens)[at : min(at + BLOCK_TOKENS, starts[block[0] + 1])].data)
            else:
                out = np.empty(int((starts[block + 1] - starts[block]).sum()), corpus.tokens.dtype)
                _copy_documents(block, starts, _fresh(corpus.tokens), out)
                file.write(out.data)


def _fresh(column: NDArray) -> NDArray:
    """The column, if it is memory-mapped in a new mapping: what was read through the old one stays out of memory."""
    if not isinstance(column, np.memmap) or column.filename is None:
        return column
    mapped = np.memmap(column.filename, column.dtype, "r", column.offset, column.shape)
    getattr(mapped, "_mmap").madvise(mmap.MADV_RANDOM)  # noqa: B009 # no page that is not asked for
    return np.asarray(mapped)


@jit
def _sort_starts(documents, document_starts, sentence_starts, out):
    """Where sentences start once the documents stand in this order."""
    at = 0
    for d in documents:
        for s in range(document_starts[d], document_starts[d + 1]):
            out[at + 1] = out[at] + sentence_starts[s + 1] - sentence_starts[s]
            at += 1


@jit
def _copy_documents(documents, starts, tokens, out):
    at = 0
    for d in documents:
        for i in range(starts[d], starts[d + 1]):
            out[at] = tokens[i]
            at += 1


class Found(NamedTuple):
    """Where documents lie: a row each."""

    parts: NDArray[np.int32]  # number of the part
    keys: NDArray[np.uint64]
    sources: NDArray[np.uint16]
    tokens: NDArray[np.int64]  # first token in the part
    token_counts: NDArray[np.int64]
    sentences: NDArray[np.int64]  # first sentence in the part
    sentence_counts: NDArray[np.int64]


def find(number: int, corpus: Corpus, chosen: NDArray[np.int64]) -> Found:
    """The documents numbered by `chosen` (ascending) of part `number`, copied: the part can be closed."""
    first, last = corpus.document_starts[chosen], corpus.document_starts[chosen + 1]
    start, stop = corpus.sentence_starts[first], corpus.sentence_starts[last]
    keys, sources = np.array(corpus.keys[chosen]), np.array(corpus.sources[chosen])
    part = np.full(len(chosen), number, np.int32)
    return Found(part, keys, sources, start, stop - start, first, last - first)


def merge(parts: list[Path], found: list[Found], folder: Path) -> None:
    """Writes the documents `found` in the folders `parts` into `folder`, in the order of their keys.

    Each part is sorted: what a chunk of the result takes of it lies close together, and is read from its file in
    few pieces. So memory stays small, and nothing stays mapped or open, however large and many the parts are.
    The result is written from front to back: a full disk is an error, where a map would kill the process."""
    rows = Found._make(np.concatenate(column) for column in zip(*found, strict=True))
    order = np.argsort(rows.keys, kind="stable")
    rows = Found._make(column[order] for column in rows)
    document_starts, token_starts = _starts(rows.sentence_counts), _starts(rows.token_counts)
    _save(folder / "keys.npy", rows.keys)
    _save(folder / "sources.npy", rows.sources)
    _save(folder / "document_starts.npy", document_starts)
    with open(folder / "tokens.npy", "wb") as tokens, open(folder / "sentence_starts.npy", "wb") as starts:
        _header(tokens, open_corpus(parts[0]).tokens.dtype, int(token_starts[-1]))
        _header(starts, np.dtype(np.int64), int(document_starts[-1]) + 1)
        for first, last in _chunks(rows):
            chunk = Found._make(column[first:last] for column in rows)
            text = _collected(parts, chunk, "tokens", chunk.tokens, chunk.token_counts)
            tokens.write(text.data)
            places = _collected(parts, chunk, "sentence_starts", chunk.sentences, chunk.sentence_counts)
            places += np.repeat(token_starts[first:last] - chunk.tokens, chunk.sentence_counts)
            starts.write(places.data)
        starts.write(token_starts[-1:].data)


def _chunks(rows: Found) -> Iterator[tuple[int, int]]:
    """Runs of documents that are held in memory together."""
    cost = rows.token_counts + SENTENCE_COST * rows.sentence_counts
    number = (np.cumsum(cost) - cost) // CHUNK
    borders = np.flatnonzero(np.diff(number, prepend=-1)).tolist()
    yield from zip(borders, [*borders[1:], len(number)], strict=True)


def _collected(
    parts: list[Path], rows: Found, column: str, first: NDArray[np.int64], counts: NDArray[np.int64]
) -> NDArray:
    """The values `first` to first + counts of a column of the rows' parts, row after row."""
    out = np.empty(0)
    places = np.cumsum(counts) - counts
    by_part = np.argsort(rows.parts, kind="stable")
    borders = np.flatnonzero(np.diff(rows.parts[by_part], prepend=-1, append=-1))
    for a, b in pairwise(borders):
        mine = by_part[a:b]  # in the order of their keys, so ascending in the part too
        starts, lengths = first[mine], counts[mine]
        with open(parts[rows.parts[mine[0]]] / f"{column}.npy", "rb") as file:
            dtype, origin = _opened(file)
            if not len(out):
                out = np.empty(int(counts.sum()), dtype)
            far = np.flatnonzero(starts[1:] - (starts + lengths)[:-1] > GAP) + 1
            for run in np.split(np.arange(len(mine)), far):
                low, high = int(starts[run[0]]), int(starts[run[-1]] + lengths[run[-1]])
                file.seek(origin + low * dtype.itemsize)
                values = np.fromfile(file, dtype, high - low)
                _scatter(values, starts[run] - low, lengths[run], places[mine[run]], out)
    return out


@jit
def _scatter(values, starts, counts, places, out):
    for i in range(len(starts)):
        out[places[i] : places[i] + counts[i]] = values[starts[i] : starts[i] + counts[i]]


def _starts(lengths: NDArray) -> NDArray[np.int64]:
    starts = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts


def _save(path: Path, column: NDArray) -> None:
    """As numpy.save, whose own way to write says of a full disk only that fewer bytes were written."""
    with writing(path), open(path, "wb") as file:
        _header(file, column.dtype, len(column))
        file.write(np.ascontiguousarray(column).data)


def _header(file: BinaryIO, dtype: np.dtype, length: int) -> None:
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (length,)}
    np.lib.format.write_array_header_1_0(file, header)


def _opened(file: BinaryIO) -> tuple[np.dtype, int]:
    """The type of the values in an .npy file, and where the first one lies."""
    np.lib.format.read_magic(file)
    _, _, dtype = np.lib.format.read_array_header_1_0(file)
    return dtype, file.tell()
