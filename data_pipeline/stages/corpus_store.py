"""Save a Corpus as a folder of .npy columns in key order, and memory-map it."""

import mmap
from dataclasses import fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_pipeline.io.files import open_to_write, writing
from data_pipeline.io.npy import mapped_npy, offsets_of, save_column, write_header
from data_pipeline.jit import copy_run, jit
from data_pipeline.records import Corpus

BLOCK_TOKENS = 1 << 20
"""Tokens sorted at a time."""


def open_corpus(folder: Path) -> Corpus:
    """Open the corpus in `folder`, memory-mapped: only what is touched is read."""
    return Corpus(**{c.name: mapped_npy(folder / f"{c.name}.npy") for c in fields(Corpus)})


def outline(folder: Path) -> Corpus:
    """Load the documents of the corpus in `folder` without their tokens, each as one sentence: enough for a plan,
    and no file stays open."""
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
    """Return the tokens of each document."""
    return token_counts(corpus, slice(0, len(corpus)))


def token_counts(corpus: Corpus, chosen: slice) -> NDArray[np.int64]:
    """Return the tokens of each document of a run."""
    return np.diff(corpus.sentence_starts[corpus.document_starts[chosen.start : chosen.stop + 1]])


def save_sorted(corpus: Corpus, folder: Path) -> None:
    """Write the documents into `folder` in key order, so that a range of keys is a range of documents. Memory-mapped
    tokens are copied block by block: memory does not grow with them."""
    order = np.argsort(corpus.keys, kind="stable")
    save_column(folder / "keys.npy", corpus.keys[order])
    save_column(folder / "sources.npy", corpus.sources[order])
    save_column(folder / "document_starts.npy", offsets_of(np.diff(corpus.document_starts)[order]))
    sentence_starts = np.zeros(len(corpus.sentence_starts), np.int64)
    _sort_starts(order, corpus.document_starts, corpus.sentence_starts, sentence_starts)
    save_column(folder / "sentence_starts.npy", sentence_starts)
    del sentence_starts
    starts = corpus.sentence_starts[corpus.document_starts]
    lengths = np.diff(starts)[order]
    numbers = (np.cumsum(lengths) - lengths) // BLOCK_TOKENS
    with writing(folder / "tokens.npy"), open_to_write(folder / "tokens.npy", "wb") as file:
        write_header(file, corpus.tokens.dtype, len(corpus.tokens))
        for block in np.split(order, np.flatnonzero(np.diff(numbers)) + 1) if len(order) else []:
            if len(block) == 1:
                end = starts[block[0] + 1]
                for at in range(starts[block[0]], end, BLOCK_TOKENS):
                    file.write(_fresh(corpus.tokens)[at : min(at + BLOCK_TOKENS, end)].data)
            else:
                out = np.empty(int((starts[block + 1] - starts[block]).sum()), corpus.tokens.dtype)
                _copy_documents(block, starts, _fresh(corpus.tokens), out)
                file.write(out.data)


def _fresh(column: NDArray) -> NDArray:
    """Return the column, in a new mapping if it is memory-mapped: pages read through the old one stay out of memory."""
    if not isinstance(column, np.memmap) or column.filename is None:
        return column
    mapped = np.memmap(column.filename, column.dtype, "r", column.offset, column.shape)
    getattr(mapped, "_mmap").madvise(mmap.MADV_RANDOM)  # noqa: B009 # no page that is not asked for
    return np.asarray(mapped)


@jit
def _sort_starts(documents, document_starts, sentence_starts, out):
    """Compute where sentences start once the documents are in this order."""
    at = 0
    for d in documents:
        for s in range(document_starts[d], document_starts[d + 1]):
            out[at + 1] = out[at] + sentence_starts[s + 1] - sentence_starts[s]
            at += 1


@jit
def _copy_documents(documents, starts, tokens, out):
    at = 0
    for d in documents:
        copy_run(out, at, tokens, starts[d], starts[d + 1])
        at += starts[d + 1] - starts[d]
