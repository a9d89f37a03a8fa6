"""A Corpus in memory <-> a folder of .npy columns that can be memory-mapped, and many of them merged into one."""

import mmap
from dataclasses import fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_pipeline.draws import jit
from data_pipeline.records import Corpus

BLOCK_TOKENS = 1 << 20
"""Tokens sorted at a time."""


def save_corpus(corpus: Corpus, folder: Path) -> None:
    """Writes the columns into `folder`, which must exist."""
    for column in fields(Corpus):
        np.save(folder / f"{column.name}.npy", getattr(corpus, column.name), allow_pickle=False)


def open_corpus(folder: Path) -> Corpus:
    """The corpus in `folder`, memory-mapped: only what is touched is read."""
    return Corpus(**{c.name: _mapped(folder / f"{c.name}.npy") for c in fields(Corpus)})


def document_tokens(corpus: Corpus) -> NDArray[np.int64]:
    """Tokens of each document."""
    return np.diff(corpus.sentence_starts[corpus.document_starts])


def save_sorted(corpus: Corpus, folder: Path) -> None:
    """Writes the documents into `folder` in the order of their keys, so that a range of keys is a range of documents.
    Memory-mapped tokens are copied block by block: memory does not grow with them."""
    order = np.argsort(corpus.keys, kind="stable")
    sentence_starts = np.zeros(len(corpus.sentence_starts), np.int64)
    _sort_starts(order, corpus.document_starts, corpus.sentence_starts, sentence_starts)
    small: dict[str, NDArray] = {
        "keys": corpus.keys[order],
        "sources": corpus.sources[order],
        "document_starts": _starts([np.diff(corpus.document_starts)[order]]),
        "sentence_starts": sentence_starts,
    }
    for name, column in small.items():
        np.save(folder / f"{name}.npy", column, allow_pickle=False)
    starts = corpus.sentence_starts[corpus.document_starts]
    lengths = np.diff(starts)[order]
    numbers = (np.cumsum(lengths) - lengths) // BLOCK_TOKENS
    with open(folder / "tokens.npy", "wb") as file:
        header = np.lib.format.header_data_from_array_1_0(corpus.tokens)
        np.lib.format.write_array_header_1_0(file, header)
        for block in np.split(order, np.flatnonzero(np.diff(numbers)) + 1) if len(order) else []:
            if len(block) == 1:
                for at in range(starts[block[0]], starts[block[0] + 1], BLOCK_TOKENS):
                    _fresh(corpus.tokens)[at : min(at + BLOCK_TOKENS, starts[block[0] + 1])].tofile(file)
            else:
                out = np.empty(int((starts[block + 1] - starts[block]).sum()), corpus.tokens.dtype)
                _copy_documents(block, starts, _fresh(corpus.tokens), out)
                out.tofile(file)


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


def merge(parts: list[tuple[Corpus, NDArray[np.int64]]], folder: Path) -> None:
    """Writes the chosen documents of all parts (corpus, their numbers) into `folder`, in the order of their keys.

    Token columns go from map to map, document by document, so that memory stays small however large
    the result is."""
    keys = np.concatenate([corpus.keys[chosen] for corpus, chosen in parts])
    sentences = np.concatenate([np.diff(corpus.document_starts)[chosen] for corpus, chosen in parts])
    tokens = np.concatenate([document_tokens(corpus)[chosen] for corpus, chosen in parts])
    order = np.argsort(keys, kind="stable")
    document_starts, token_starts = _starts([sentences[order]]), _starts([tokens[order]])
    sources = np.concatenate([corpus.sources[chosen] for corpus, chosen in parts])
    np.save(folder / "keys.npy", keys[order], allow_pickle=False)
    np.save(folder / "sources.npy", sources[order], allow_pickle=False)
    np.save(folder / "document_starts.npy", document_starts, allow_pickle=False)
    all_tokens = np.lib.format.open_memmap(
        folder / "tokens.npy", "w+", dtype=parts[0][0].tokens.dtype, shape=(int(token_starts[-1]),)
    )
    all_starts = np.lib.format.open_memmap(
        folder / "sentence_starts.npy", "w+", dtype=np.int64, shape=(int(document_starts[-1]) + 1,)
    )
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    number = 0
    for corpus, chosen in parts:
        for d in chosen:
            first, last = corpus.document_starts[d], corpus.document_starts[d + 1]
            starts = corpus.sentence_starts[first : last + 1]
            to_sentence, to_token = document_starts[place[number]], token_starts[place[number]]
            all_tokens[to_token : to_token + starts[-1] - starts[0]] = corpus.tokens[starts[0] : starts[-1]]
            all_starts[to_sentence : to_sentence + last - first] = starts[:-1] - starts[0] + to_token
            number += 1
    all_starts[-1] = token_starts[-1]
    all_tokens.flush()
    all_starts.flush()


def _starts(lengths: list[NDArray]) -> NDArray[np.int64]:
    flat = np.concatenate([np.zeros(1, np.int64), *lengths])
    return np.cumsum(flat, dtype=np.int64)


def _mapped(path: Path) -> NDArray:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError:  # an empty column cannot be mapped
        return np.load(path, allow_pickle=False)
