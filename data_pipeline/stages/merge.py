"""Merge the documents of many tokenized parts into one corpus in key order, at any size."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_pipeline.io.files import open_to_write
from data_pipeline.io.npy import offsets_of, opened, save_column, write_header
from data_pipeline.jit import copy_run, jit
from data_pipeline.records import Corpus
from data_pipeline.stages.corpus_store import open_corpus

CHUNK_TOKENS = 1 << 25
"""Approximate tokens that `merge` holds in memory at a time; a longer document is held whole."""
SENTENCE_TOKENS = 8
"""Weight of a sentence in a chunk, in tokens: its start takes that much more memory."""
MAX_GAP_TOKENS = 1 << 14
"""Maximum gap between two documents, in tokens, for one read to cover both."""


class DocumentRows(NamedTuple):
    """Where documents are; one row per document."""

    parts: NDArray[np.int32]  # number of the part
    keys: NDArray[np.uint64]
    sources: NDArray[np.uint16]
    tokens: NDArray[np.int64]  # first token in the part
    token_counts: NDArray[np.int64]
    sentences: NDArray[np.int64]  # first sentence in the part
    sentence_counts: NDArray[np.int64]


def locate(number: int, corpus: Corpus, chosen: NDArray[np.int64]) -> DocumentRows:
    """Return the rows of the documents `chosen` (ascending) of part `number`, copied so that the part can be closed."""
    first, last = corpus.document_starts[chosen], corpus.document_starts[chosen + 1]
    start, stop = corpus.sentence_starts[first], corpus.sentence_starts[last]
    keys, sources = np.array(corpus.keys[chosen]), np.array(corpus.sources[chosen])
    part = np.full(len(chosen), number, np.int32)
    return DocumentRows(part, keys, sources, start, stop - start, first, last - first)


def merge(parts: list[Path], found: list[DocumentRows], folder: Path, threads: int = 1) -> None:
    """Write the documents `found` in the folders `parts` into `folder`, in key order.

    Each part is sorted: what a chunk of the result takes from it is nearly contiguous, and is read from its file in
    few pieces, `threads` chunks at a time. So memory stays small, and nothing stays mapped or open, for any size and
    number of parts. The result is written sequentially: a full disk raises an error, where a map would kill the
    process."""
    rows = DocumentRows._make(np.concatenate(column) for column in zip(*found, strict=True))
    order = np.argsort(rows.keys, kind="stable")
    rows = DocumentRows._make(column[order] for column in rows)
    document_starts, token_starts = offsets_of(rows.sentence_counts), offsets_of(rows.token_counts)
    save_column(folder / "keys.npy", rows.keys)
    save_column(folder / "sources.npy", rows.sources)
    save_column(folder / "document_starts.npy", document_starts)
    with (
        open_to_write(folder / "tokens.npy", "wb") as tokens,
        open_to_write(folder / "sentence_starts.npy", "wb") as starts,
    ):
        write_header(tokens, open_corpus(parts[0]).tokens.dtype, int(token_starts[-1]))
        write_header(starts, np.dtype(np.int64), int(document_starts[-1]) + 1)

        def columns(first: int, last: int) -> tuple[NDArray, NDArray[np.int64]]:
            chunk = DocumentRows._make(column[first:last] for column in rows)
            text = _collected(parts, chunk, "tokens", chunk.tokens, chunk.token_counts)
            places = _collected(parts, chunk, "sentence_starts", chunk.sentences, chunk.sentence_counts)
            places += np.repeat(token_starts[first:last] - chunk.tokens, chunk.sentence_counts)
            return text, places

        for text, places in _ahead(columns, _chunks(rows), threads):
            tokens.write(text.data)
            starts.write(places.data)
        starts.write(token_starts[-1:].data)


def _ahead(function: Callable[..., Any], tasks: Iterator[tuple], threads: int) -> Iterator[Any]:
    """Yield function(*task) for each task in order, `threads` at a time."""
    with ThreadPoolExecutor(threads) as pool:
        under_way = deque(pool.submit(function, *task) for task in islice(tasks, threads))
        while under_way:
            result = under_way.popleft().result()
            under_way.extend(pool.submit(function, *task) for task in islice(tasks, 1))
            yield result


def _chunks(rows: DocumentRows) -> Iterator[tuple[int, int]]:
    """Yield the runs of documents that are held in memory together."""
    cost = rows.token_counts + SENTENCE_TOKENS * rows.sentence_counts
    number = (np.cumsum(cost) - cost) // CHUNK_TOKENS
    borders = np.flatnonzero(np.diff(number, prepend=-1)).tolist()
    yield from zip(borders, [*borders[1:], len(number)], strict=True)


def _collected(
    parts: list[Path], rows: DocumentRows, column: str, first: NDArray[np.int64], counts: NDArray[np.int64]
) -> NDArray:
    """Return the values `first` to first + counts of a column of the rows' parts, row after row."""
    out = np.empty(0)
    places = np.cumsum(counts) - counts
    by_part = np.argsort(rows.parts, kind="stable")
    borders = np.flatnonzero(np.diff(rows.parts[by_part], prepend=-1, append=-1))
    for a, b in pairwise(borders):
        mine = by_part[a:b]  # in key order, so ascending in the part too
        starts, lengths = first[mine], counts[mine]
        with open(parts[rows.parts[mine[0]]] / f"{column}.npy", "rb") as file:
            dtype, origin = opened(file)
            if not len(out):
                out = np.empty(int(counts.sum()), dtype)
            far = np.flatnonzero(starts[1:] - (starts + lengths)[:-1] > MAX_GAP_TOKENS) + 1
            for run in np.split(np.arange(len(mine)), far):
                low, high = int(starts[run[0]]), int(starts[run[-1]] + lengths[run[-1]])
                file.seek(origin + low * dtype.itemsize)
                values = np.fromfile(file, dtype, high - low)
                _scatter(values, starts[run] - low, lengths[run], places[mine[run]], out)
    return out


@jit
def _scatter(values, starts, counts, places, out):
    for i in range(len(starts)):
        copy_run(out, places[i], values, starts[i], starts[i] + counts[i])
