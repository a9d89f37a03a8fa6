"""Define the base class of the sequence builders, and the compiled code shared by their walks over documents.

A builder turns documents of a Corpus into Segments. A walk steps from sequence to sequence through the flat columns of
the Corpus (`flat_columns`); a range of tokens is a pair of numbers, and nothing is copied until a sequence is written
into the buffers.

A document is walked once per pass. The draws of (document, pass) come from a separate stream, keyed by the seed and
derive_key(document key, pass), so a document yields the same sequences regardless of the other documents in its range.
The draws that mask its sequence number `ordinal` are keyed by derive_key(derive_key(document key, pass), ordinal): no
two sequences of a walk share them; across walks the keys are 64-bit hashes, and a collision would only make two
sequences share the randomness of their masks.

The walks and the builders are in pairs.py and single.py; registry.py registers the builders by name.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numba import types
from numpy.typing import NDArray

from data_pipeline.errors import UserError
from data_pipeline.io.npy import release
from data_pipeline.jit import copy_run, jit, read_only
from data_pipeline.records import Corpus, Segments
from data_pipeline.rng import PHILOX_WORDS, SEGMENTS, derive_key, draw_below, draw_unit, start
from data_pipeline.settings import WITHOUT_SEPARATORS, DataSettings

if TYPE_CHECKING:
    from data_pipeline.vocabulary.base import Vocabulary


# Read a few sentences or tokens at random positions of a Corpus on disk, from compiled code. A random next segment may
# come from anywhere in a pool. With memory mapping, each would load at least 64 KB, on some kernels 2 MB, into the
# process's memory: soon the whole pool. A pool too large for that is read with pread instead, a few hundred
# bytes at a time: a few microseconds per segment, and no memory.

MAPPED_BYTES = 640 << 20
"""Tokens and sentence starts of a larger pool are read, not mapped."""
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
            raise ValueError("the sentence starts of a pool end too early")
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
        raise ValueError("the tokens of a pool end too early")


# Draw targets, step through documents and write sequences, for all compiled loops over documents.

# The state of a walk between buffers: indices into an array of int64.
DOCUMENT, PASS, POSITION, TOKEN, TARGET, ORDINAL, USED = range(7)
# USED counts the tokens of the documents that the first pass over each has put into sequences.
AT_START = -1  # as POSITION: this pass over the document has not begun


@jit
def draw_target(stream, room, short_seq_prob):
    """Draw the target length of one pass over a document."""
    if draw_unit(stream) < short_seq_prob:
        return 2 + draw_below(stream, room - 1)
    return room


@jit
def begin(walk, stream, numbers, columns):
    """Start the current pass over the current document unless it has begun; return the pass's key."""
    seed, _, _, room, short_seq_prob = numbers
    starts, firsts, keys = columns[1], columns[2], columns[4]
    key = derive_key(keys[walk[DOCUMENT]], walk[PASS])
    if walk[POSITION] == AT_START:
        start(stream, seed, key, np.uint64(SEGMENTS))
        walk[POSITION], walk[ORDINAL] = firsts[walk[DOCUMENT]], 0
        walk[TOKEN] = starts[walk[POSITION]]
        walk[TARGET] = draw_target(stream, room, short_seq_prob)
    return key


@jit
def go_on(walk, position, token, numbers, passes, last):
    """Move to the start of the next sequence: in this pass, the next pass, or the next document that has one.
    `passes`: of documents first..stop-1."""
    _, first, stop, _, _ = numbers
    walk[POSITION], walk[TOKEN] = position, token
    walk[ORDINAL] += 1
    if position == last:
        walk[POSITION] = AT_START
        walk[PASS] += 1
        while walk[DOCUMENT] < stop and walk[PASS] >= passes[walk[DOCUMENT] - first]:
            walk[DOCUMENT], walk[PASS] = walk[DOCUMENT] + 1, 0


@jit
def write_pair(tokens, files, pair, frame, out, at):
    """Write [CLS] A [SEP] B [SEP] to out[at:], or [CLS] A B; return the token counts of segment 0 and of the whole.
    `frame`: ids of [CLS] and [SEP], and 1 with separators, 0 without. `files`: source of B (`Files`)."""
    a0, a1, b0, b1 = pair
    cls, sep, separators = frame
    first = 1 + a1 - a0 + separators
    whole = first + b1 - b0 + separators
    out[at] = cls
    copy_run(out, at + 1, tokens, a0, a1)
    copy_tokens(tokens, files, b0, b1, out[at + first :])
    if separators:
        out[at + first - 1] = sep
        out[at + whole - 1] = sep
    return first, whole


@jit
def write_stream(tokens, begins, ends, frame, out, at):
    """Write [CLS] text [SEP] to out[at:], or [CLS] text; return its number of tokens."""
    cls, sep, separators = frame
    whole = 1 + ends - begins + separators
    out[at] = cls
    copy_run(out, at + 1, tokens, begins, ends)
    if separators:
        out[at + whole - 1] = sep
    return whole


# Build the sequences of documents, a buffer at a time.

BUFFER_TOKENS = 1 << 20
"""Tokens that compiled code writes per buffer."""

Passes = int | NDArray[np.int64]
"""Passes over every document, or over each document of a range; 0: none."""


@dataclass(frozen=True, eq=False)
class SequenceBuilder:
    """Builds the sequences of an objective from documents; it is sent to workers."""

    sequence_length: int
    short_seq_prob: float
    cls: int
    """Id of [CLS]."""
    sep: int
    """Id of [SEP]."""
    separators: bool = True
    """[SEP] after each segment."""
    segment_ids: bool = True
    """Whether the segments of a pair have different ids; else first_lengths are whole lengths."""
    random_next: float = 0.5
    """Share of pairs with label 1."""

    parts: ClassVar[int]
    """Segments of a sequence."""
    least_tokens: ClassVar[int] = 1
    """Tokens of a document that make a sequence of this kind, at least."""

    def __post_init__(self) -> None:
        least, most = self.specials + 2, np.iinfo(np.uint16).max
        if not least <= self.sequence_length <= most:
            raise UserError(
                f"must be from {least} to {most} tokens, got {self.sequence_length}",
                where="data.sequence_length",
            )

    @classmethod
    def from_settings(cls, settings: DataSettings, vocabulary: "Vocabulary") -> Self:
        """Make the builder for these settings. Raises UserError for a setting out of range."""
        return cls(
            settings.sequence_length,
            settings.short_seq_prob,
            vocabulary.cls,
            vocabulary.sep,
            settings.separators != WITHOUT_SEPARATORS,
            settings.segment_ids,
            settings.random_next,
        )

    @property
    def specials(self) -> int:
        """Special tokens that frame a sequence."""
        return 1 + (self.parts if self.separators else 0)

    @property
    def room(self) -> int:
        """Tokens of text that fit into a sequence."""
        return self.sequence_length - self.specials

    def pieces(self, corpus: Corpus, start: int, stop: int, seed: int, passes: Passes) -> Iterator[Segments]:
        """Yield the sequences of documents start..stop-1 of `corpus`: `passes` passes over each, or passes[i] over
        document start + i. A pass yields the same sequences regardless of how many follow. Pieces hold about
        BUFFER_TOKENS tokens, so a document is never too large. There is at least one piece, which may be empty."""
        raise NotImplementedError

    def _walk(
        self, fill: Callable[..., int], corpus: Corpus, start: int, stop: int, seed: int, passes: Passes
    ) -> Iterator[Segments]:
        """Run the compiled loop `fill` over the documents, a buffer at a time."""
        numbers = (np.uint64(seed % 2**64), start, stop, self.room, float(self.short_seq_prob))
        each = passes_of_each(passes, start, stop)
        frame = (self.cls, self.sep, int(self.separators))
        first = start + int(np.argmax(each > 0)) if each.any() else stop
        walk = np.array([first, 0, AT_START, 0, 0, 0, 0], np.int64)
        stream = np.zeros(PHILOX_WORDS, np.uint64)
        buffers = _buffers(corpus.tokens.dtype)
        none = True
        with opened(corpus) as files:
            columns = (*flat_columns(corpus), files)
            while walk[DOCUMENT] < stop or none:
                none = False
                walk[USED] = 0
                made = fill(walk, stream, numbers, each, columns, frame, buffers)
                segments = _handed_over(buffers, made, int(walk[USED]))
                if is_large(corpus):
                    release(corpus)
                if not self.segment_ids:
                    segments = replace(segments, first_lengths=np.diff(segments.offsets).astype(np.uint16))
                yield segments


def passes_of_each(passes: Passes, start: int, stop: int) -> NDArray[np.int64]:
    """Return the number of passes over each of the documents start..stop-1."""
    if np.ndim(passes) == 0:
        return np.full(stop - start, passes, np.int64)
    each = np.ascontiguousarray(passes, np.int64)
    if len(each) != stop - start:
        raise ValueError(f"{len(each)} numbers of passes for {stop - start} documents")
    return each


def flat_columns(corpus: Corpus) -> tuple[NDArray, ...]:
    """Return the corpus for compiled code: tokens, sentence starts, and each document's first sentence, last + 1
    sentence, key and source."""
    starts = read_only(corpus.document_starts)
    tokens, sentences, keys = map(read_only, (corpus.tokens, corpus.sentence_starts, corpus.keys))
    return tokens, sentences, starts[:-1], starts[1:], keys, read_only(corpus.sources)


def _buffers(dtype: np.dtype) -> tuple[NDArray, ...]:
    """Allocate the columns of Segments; unused pages cost no memory."""
    sequences = BUFFER_TOKENS // 16
    return (
        np.empty(BUFFER_TOKENS, dtype),
        np.zeros(sequences + 1, np.int64),
        np.empty(sequences, np.uint16),
        np.empty(sequences, np.int8),
        np.empty(sequences, np.uint64),
        np.empty(sequences, np.uint16),
        np.empty(sequences, np.uint16),
    )


def _handed_over(buffers: tuple[NDArray, ...], made: int, used: int) -> Segments:
    tokens, offsets, *others = buffers
    columns = (tokens[: offsets[made]], offsets[: made + 1], *(column[:made] for column in others))
    parts: list[Any] = [column.copy() for column in columns]
    return replace(Segments(*parts), tokens_used=used)
