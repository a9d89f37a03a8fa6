"""Define the record types that the stages of the data pipeline exchange; they exchange nothing else.

Data is held in columns, not objects: one ragged array holds thousands of examples, so the stages after tokenization
are arithmetic over flat arrays. Compiled code, and numba with it, is imported only where it is called.

    Document -> Sentences -> Corpus (token ids) -> Segments (pairs or streams) -> Examples (masked)
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_pipeline.io.npy import offsets_of

NO_LABEL = -1
"""Label of an example whose segments have none: a single stream, or two segments that always follow one another."""

ShowProgress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""Shows progress: stage(name, total) gives a context whose value is called with the number of newly finished items."""


def _no_sources() -> NDArray[np.uint16]:
    return np.empty(0, np.uint16)


class Document(NamedTuple):
    """A text with a stable name: its path relative to the source root plus its record number or id field."""

    id: str
    text: str
    source: int = 0  # index in data.sources: sets language and weight


class Sentences(NamedTuple):
    """A document split into non-empty sentences, in order. The iterable can be read only once."""

    id: str
    sentences: Iterable[str]
    source: int = 0


@dataclass(frozen=True)
class Corpus:
    """Tokenized documents. Sentence s holds tokens[sentence_starts[s]:sentence_starts[s + 1]];
    document d holds sentences document_starts[d]:document_starts[d + 1]. No sentence or document is empty."""

    tokens: NDArray[np.unsignedinteger]  # uint16 or uint32, flat, without special tokens
    sentence_starts: NDArray[np.int64]  # sentences + 1
    document_starts: NDArray[np.int64]  # documents + 1
    keys: NDArray[np.uint64]  # hash of each document's id: orders documents and keys their random draws
    sources: NDArray[np.uint16]  # index in data.sources of each document

    def __len__(self) -> int:
        return len(self.keys)


class Column(NamedTuple):
    """Schema of one column of examples, valid in memory, in a block, in a window and in a batch."""

    types: tuple[str, ...]
    """Types on disk, narrowest first. A single type is also the type in memory, except for offsets: 64 bits."""
    rows: str = ""
    """The offsets column that cuts it into one row per example; empty: one entry per example."""
    required: bool = True
    """An optional column is listed in index.json if the shards have it, with an exclusive upper bound of its values."""


_IDS, _OFFSETS, _TOKEN, _MASK = ("<u2", "<u4"), ("<u4",), "offsets", "masked_offsets"

COLUMNS = {
    "tokens": Column(_IDS, _TOKEN),
    "offsets": Column(_OFFSETS),
    "first_lengths": Column(("<u2",)),
    "labels": Column(("|i1",)),
    "masked_positions": Column(("<u2",), _MASK),
    "masked_ids": Column(_IDS, _MASK),
    "masked_offsets": Column(_OFFSETS),
    "segment_ids": Column(("|u1",), _TOKEN, required=False),
    "positions": Column(("<u2",), _TOKEN, required=False),
}
"""The columns of Examples by name, in the order in which blocks hold them. To add one, add a line here and a field to
Examples, and to Segments if the sequence builders produce it. Offsets have one entry more than there are examples."""
OFFSETS = tuple(dict.fromkeys(column.rows for column in COLUMNS.values() if column.rows))
REQUIRED = tuple(name for name, column in COLUMNS.items() if column.required)


@dataclass(frozen=True)
class Segments:
    """Sequences ready to be masked: [CLS] A [SEP] B [SEP], or [CLS] A [SEP] for a single stream; with
    data.separators=absent without [SEP]. Sequence i holds tokens[offsets[i]:offsets[i + 1]]."""

    tokens: NDArray[np.unsignedinteger]  # flat, special tokens included, no padding
    offsets: NDArray[np.int64]  # sequences + 1
    first_lengths: NDArray[np.uint16]  # tokens of segment 0: [CLS], A and the first [SEP]; or all of them
    labels: NDArray[np.int8]  # the pair task's, by sequences/registry.py; NO_LABEL: none
    keys: NDArray[np.uint64]  # keys of the draws that corrupt each sequence: unique, independent of batching
    first_sources: NDArray[np.uint16] = field(default_factory=_no_sources)  # index in data.sources of the
    last_sources: NDArray[np.uint16] = field(
        default_factory=_no_sources
    )  # documents of A and B; empty: unknown
    segment_ids: NDArray[np.uint8] | None = None  # of each token; None: 0 up to first_lengths, 1 after them
    tokens_used: int = (
        0  # tokens of the documents that a first pass puts here; random second segments do not count
    )

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Examples:
    """Masked sequences. Writing masked_ids at masked_positions of `tokens` restores the original text.
    Example i holds tokens[offsets[i]:offsets[i + 1]] and
    masked_positions[masked_offsets[i]:masked_offsets[i + 1]]."""

    tokens: NDArray[np.unsignedinteger]  # flat, as the encoder sees them: some replaced
    offsets: NDArray[np.int64]  # examples + 1
    first_lengths: NDArray[np.uint16]  # tokens of segment 0
    labels: NDArray[np.int8]  # as in Segments
    masked_positions: NDArray[np.uint16]  # within the example, ascending
    masked_ids: NDArray[np.unsignedinteger]  # the original ids at these positions
    masked_offsets: NDArray[np.int64]  # examples + 1
    segment_ids: NDArray[np.uint8] | None = None  # as in Segments
    positions: NDArray[np.uint16] | None = None  # of each token; None: its place in the example

    @classmethod
    def of(cls, segments: Segments, **corrupted: NDArray) -> "Examples":
        """Make the examples of `segments`: the columns both types share, plus the `corrupted` ones."""
        kept = {name: getattr(segments, name) for name in COLUMNS if hasattr(segments, name)}
        return cls(**{**kept, **corrupted})

    @classmethod
    def blank(cls, count: int, further: Iterable[str] = ()) -> "Examples":
        """Make `count` examples without tokens, with the required columns and the `further` ones."""
        columns = {}
        for name in (*REQUIRED, *further):
            sizes = (
                (count + 1, np.dtype(np.int64))
                if name in OFFSETS
                else (count, np.dtype(COLUMNS[name].types[0]))
            )
            columns[name] = np.zeros(*((0, sizes[1]) if COLUMNS[name].rows else sizes))
        return cls(**columns)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def columns(self) -> dict[str, NDArray]:
        """The columns that are not None, by name, in the order of COLUMNS."""
        return {name: found for name in COLUMNS if (found := getattr(self, name)) is not None}

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each example."""
        return np.diff(self.offsets)

    @property
    def places(self) -> NDArray[np.int64]:
        """The place of each token in its example, from 0: (T,)."""
        return np.arange(len(self.tokens)) - np.repeat(self.offsets[:-1], self.lengths)

    def take(self, order: NDArray[np.integer]) -> "Examples":
        """Return the examples with the indices `order`, in that order."""
        from data_pipeline.jit import take_ragged

        taken: dict[str, NDArray] = {}
        for name, column in self.columns.items():
            if rows := COLUMNS[name].rows:
                taken[name], taken[rows] = take_ragged(order, getattr(self, rows), column)
            elif name not in OFFSETS:
                taken[name] = column[order]
        return Examples(**taken)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Examples) and all(
            np.array_equal(getattr(self, f.name), getattr(other, f.name)) for f in fields(self)
        )

    __hash__ = None  # type: ignore[assignment]


def concatenate(parts: list[Examples]) -> Examples:
    """Concatenate the examples of `parts`, which have the same columns, in order."""
    joined: dict[str, Any] = {}
    for name in parts[0].columns:
        found = [getattr(part, name) for part in parts]
        offsets = name in OFFSETS
        joined[name] = (
            offsets_of(np.concatenate([*map(np.diff, found)])) if offsets else np.concatenate(found)
        )
    return Examples(**joined)
