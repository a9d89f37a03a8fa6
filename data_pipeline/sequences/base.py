"""Define the base class of the sequence builders, which turn documents of a Corpus into Segments.

A document is walked once per pass. The draws of (document, pass) come from a separate stream, keyed by the seed and
derive_key(document key, pass), so a document yields the same sequences regardless of the other documents in its range.
The draws that mask its sequence number `ordinal` are keyed by derive_key(derive_key(document key, pass), ordinal): no
two sequences of a walk share them; across walks the keys are 64-bit hashes, and a collision would only make two
sequences share the randomness of their masks.

The builders are in pairs.py and single.py, registered by name in registry.py.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import UserError
from data_pipeline.io.npy import release
from data_pipeline.jit import read_only
from data_pipeline.records import Corpus, Segments
from data_pipeline.rng import PHILOX_WORDS
from data_pipeline.sequences.kernels import AT_START, DOCUMENT, USED
from data_pipeline.sequences.random_reads import is_large, opened
from data_pipeline.settings import WITHOUT_SEPARATORS, DataSettings

if TYPE_CHECKING:
    from data_pipeline.vocabulary.base import Vocabulary

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
        if not 0.0 <= self.short_seq_prob <= 1.0:
            raise UserError(f"must be in [0, 1], got {self.short_seq_prob}", where="data.short_seq_prob")

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
