"""Read a few sentences or tokens at random positions of a Corpus on disk, from compiled code.

A random next segment may come from anywhere in a partition. With memory mapping, each would load at least 64 KB, on
some kernels 2 MB, into the process's memory: soon the whole partition. A partition too large for that is read with
pread instead, a few hundred bytes at a time: a few microseconds per segment, and no memory.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from data_pipeline.jit import copy_run, jit
from data_pipeline.records import Corpus

MAPPED_BYTES = 640 << 20
"""Tokens and sentence starts of a larger partition are read, not mapped."""
AHEAD = 64
"""Sentence starts read at once: more than the sentences of a typical segment."""

Files = tuple[int, int, int, int, NDArray[np.int64]]
"""Descriptor and first byte of the tokens, the same for the sentence starts (descriptors -1: use the arrays), and the
sentence starts read last: the number of the first, their count, and their values."""

_pread: Any = types.ExternalFunction(
    "pread", types.intp(types.int32, types.voidptr, types.uintp, types.int64)
)


def no_files() -> Files:
    """Return the Files of a corpus that is in memory, or small enough to be mapped."""
    return -1, 0, -1, 0, np.zeros(2 + AHEAD, np.int64)


def is_large(corpus: Corpus) -> bool:
    """Return whether the corpus is memory-mapped and too large for random access to the map."""
    columns = (corpus.tokens, corpus.sentence_starts)
    return all(isinstance(c, np.memmap) for c in columns) and sum(c.nbytes for c in columns) > MAPPED_BYTES


@contextmanager
def opened(corpus: Corpus) -> Iterator[Files]:
    """Open the files to read donors from for the duration of the block."""
    if not is_large(corpus):
        yield no_files()
        return
    columns: Any = (corpus.tokens, corpus.sentence_starts)  # maps, which know their files
    with open(columns[0].filename, "rb") as tokens, open(columns[1].filename, "rb") as starts:
        yield tokens.fileno(), columns[0].offset, starts.fileno(), columns[1].offset, no_files()[-1]


@jit
def sentence_start(starts, files, sentence):
    """Return the index of the first token of a sentence."""
    _, _, descriptor, origin, window = files
    if descriptor < 0:
        return starts[sentence]
    if not window[0] <= sentence < window[0] + window[1]:
        count = _pread(
            np.int32(descriptor),
            window[2:].ctypes,
            np.uintp(8 * AHEAD),
            np.int64(origin + 8 * sentence),
        )
        if count < 8:
            raise ValueError("the sentence starts of a partition end too early")
        window[0], window[1] = sentence, count // 8
    return window[2 + sentence - window[0]]


@jit
def copy_tokens(tokens, files, first, last, out):
    """Copy the tokens first..last-1 to the beginning of `out`."""
    descriptor, origin, _, _, _ = files
    if descriptor < 0:
        copy_run(out, 0, tokens, first, last)
        return
    size = (last - first) * out.itemsize
    if size != _pread(
        np.int32(descriptor), out.ctypes, np.uintp(size), np.int64(origin + first * out.itemsize)
    ):
        raise ValueError("the tokens of a partition end too early")
