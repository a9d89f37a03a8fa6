"""Data recipes: documents start..stop-1 of a Corpus in, Segments out (pairs for NSP, or single streams).

A document is walked once a pass. The draws of (document, pass) come from a stream of its own, keyed by the
seed and mix(document key, pass), so that a document yields the same sequences whatever its range holds
beside it. The draws that mask its sequence number `ordinal` are keyed by mix(mix(document key, pass),
ordinal): no two sequences of a walk share them; across walks the keys are 64-bit hashes, and two sequences
that happened to agree would merely share the randomness of their masks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import UserError
from data_pipeline.masking import Masker
from data_pipeline.records import Corpus, Examples, Segments, read_only
from data_pipeline.settings import DataSettings
from data_pipeline.twister import PHILOX_WORDS
from data_pipeline.walks import AT_START, DOCUMENT, fill_pairs, fill_streams

if TYPE_CHECKING:
    from data_pipeline.vocabulary import Vocabulary

BUFFER_TOKENS = 1 << 22
"""Tokens that compiled code writes before they are handed over."""


@dataclass(frozen=True, eq=False)
class SegmentRecipe:
    """The data half of an objective, sent to workers: lengths, and the masker that corrupts its sequences."""

    sequence_length: int
    short_seq_prob: float
    masker: Masker
    specials: ClassVar[int]  # special tokens in a sequence

    def __post_init__(self) -> None:
        least, most = self.specials + 2, np.iinfo(np.uint16).max
        if not least <= self.sequence_length <= most:
            raise UserError(
                f"cannot be {self.sequence_length}",
                where="data.sequence_length",
                expected=f"{least} to {most} tokens",
            )
        if not 0.0 <= self.short_seq_prob <= 1.0:
            raise UserError(
                f"cannot be {self.short_seq_prob}", where="data.short_seq_prob", expected="a share, 0 to 1"
            )

    @classmethod
    def from_settings(cls, settings: DataSettings, vocabulary: "Vocabulary") -> Self:
        """The recipe of these settings. Raises UserError where one is out of its range."""
        masker = Masker.from_settings(settings, vocabulary)
        return cls(settings.sequence_length, settings.short_seq_prob, masker)

    @property
    def mask(self) -> int:
        """Id of [MASK]."""
        return self.masker.rule.mask

    @property
    def room(self) -> int:
        """Tokens of text that fit into a sequence."""
        return self.sequence_length - self.specials

    def segments(self, corpus: Corpus, start: int, stop: int, seed: int, passes: int) -> Segments:
        """The sequences of documents start..stop-1 of `corpus`, `passes` passes each."""
        raise NotImplementedError

    def corrupt(self, segments: Segments, seed: int) -> Examples:
        """The masked examples, one a sequence, in order; the draws are keyed by (seed, segments.keys)."""
        return self.masker(segments, seed)

    def _walk(
        self, fill: Callable[..., int], corpus: Corpus, start: int, stop: int, seed: int, passes: int
    ) -> Segments:
        """Runs the compiled loop `fill` over the documents, a buffer at a time."""
        rule = self.masker.rule
        numbers = (np.uint64(seed % 2**64), stop, passes, self.room, float(self.short_seq_prob))
        walk = np.array([start if passes > 0 else stop, 0, AT_START, 0, 0, 0], np.int64)
        stream = np.zeros(PHILOX_WORDS, np.uint64)
        columns, buffers = flat_columns(corpus), _buffers(corpus.tokens.dtype)
        parts: list[Segments] = []
        while walk[DOCUMENT] < stop or not parts:
            made = fill(walk, stream, numbers, columns, (rule.cls, rule.sep), buffers)
            parts.append(_handed_over(buffers, made))
        return parts[0] if len(parts) == 1 else _joined(parts)


class NextSentencePairs(SegmentRecipe):
    """BERT's [CLS] A [SEP] B [SEP] (Devlin et al. 2019, section 3.1 and appendix A.2).

    A pass over a document draws one target length: usually all the room, with `short_seq_prob` a random
    shorter one. Sentences are gathered until they reach it and cut in two at random: A and its true next B
    (label 0), or, half the time and whenever there is only one sentence, A and a random B (label 1) from
    a random sentence on of another document, every other document as likely as the next; the sentences not
    used then are put back. The longer of A and B loses tokens at random ends until both fit.
    """

    specials: ClassVar[int] = 3

    def segments(self, corpus: Corpus, start: int, stop: int, seed: int, passes: int) -> Segments:
        """The pairs of documents start..stop-1, `passes` passes each; donors come from all of `corpus`,
        which may be memory-mapped. Raises UserError where there is no other document to draw from."""
        if start < stop and corpus.keys[0] == corpus.keys[-1] and (corpus.keys == corpus.keys[0]).all():
            raise UserError(
                "a random next segment needs another document, and there is only one",
                where="data.sources",
                expected="two documents or more",
                remedy="add text, part it by blank lines, or train without pairs: objective.name=mlm",
            )
        return self._walk(fill_pairs, corpus, start, stop, seed, passes)


class SingleStreams(SegmentRecipe):
    """[CLS] text [SEP]: whole sentences of one document, one after the other, as many as fit
    (DOC-SENTENCES of Liu et al. 2019, RoBERTa, section 4.2).

    `short_seq_prob` acts as for pairs: so often a pass over a document aims at a random shorter length, and a
    sentence beyond that length stands alone. One beyond all the room is cut there, and what is left of
    it begins the next sequence, so that no token is lost. With `short_seq_prob` 0 all passes yield the same
    sequences, each with masks of its own.
    """

    specials: ClassVar[int] = 2

    def segments(self, corpus: Corpus, start: int, stop: int, seed: int, passes: int) -> Segments:
        """The streams of documents start..stop-1, `passes` passes each. Labels are -1."""
        return self._walk(fill_streams, corpus, start, stop, seed, passes)


def flat_columns(corpus: Corpus) -> tuple[NDArray, ...]:
    """The corpus for compiled code: tokens, sentence starts, each document's first and last + 1 sentence, keys."""
    starts = read_only(corpus.document_starts)
    tokens, sentences, keys = map(read_only, (corpus.tokens, corpus.sentence_starts, corpus.keys))
    return tokens, sentences, starts[:-1], starts[1:], keys


def _buffers(dtype: np.dtype) -> tuple[NDArray, ...]:
    """Room for the columns of Segments; pages that stay unused cost no memory."""
    sequences = BUFFER_TOKENS // 16
    return (
        np.empty(BUFFER_TOKENS, dtype),
        np.zeros(sequences + 1, np.int64),
        np.empty(sequences, np.uint16),
        np.empty(sequences, np.int8),
        np.empty(sequences, np.uint64),
    )


def _handed_over(buffers: tuple[NDArray, ...], made: int) -> Segments:
    tokens, offsets, first_lengths, labels, keys = buffers
    columns = (tokens[: offsets[made]], offsets[: made + 1], first_lengths[:made], labels[:made], keys[:made])
    return Segments(*(column.copy() for column in columns))


def _joined(parts: list[Segments]) -> Segments:
    lengths = np.concatenate([np.diff(p.offsets) for p in parts])
    return Segments(
        tokens=np.concatenate([p.tokens for p in parts]),
        offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]),
        first_lengths=np.concatenate([p.first_lengths for p in parts]),
        labels=np.concatenate([p.labels for p in parts]),
        keys=np.concatenate([p.keys for p in parts]),
    )
