"""Build single sequences from documents: [CLS] text [SEP], without a label."""

from collections.abc import Iterator
from typing import ClassVar

from data_pipeline.records import Corpus, Segments
from data_pipeline.sequences.base import Passes, SequenceBuilder
from data_pipeline.sequences.single_kernels import fill_full, fill_streams


class SingleStreams(SequenceBuilder):
    """[CLS] text [SEP]: whole sentences of one document, one after the other, as many as fit
    (DOC-SENTENCES of Liu et al. 2019, RoBERTa, section 4.2).

    `short_seq_prob` acts as for pairs: so often a pass over a document aims at a random shorter length, and a
    sentence beyond that length stands alone. One beyond all the room is cut there, and what is left of
    it begins the next sequence, so that no token is lost. With `short_seq_prob` 0 all passes yield the same
    sequences, each with masks of its own.
    """

    parts: ClassVar[int] = 1

    def pieces(self, corpus: Corpus, start: int, stop: int, seed: int, passes: Passes) -> Iterator[Segments]:
        """The streams of documents start..stop-1, so many passes over each. Labels are -1."""
        return self._walk(fill_streams, corpus, start, stop, seed, passes)


class FullSentences(SequenceBuilder):
    """Whole sentences, as many as fit, from one document on into the next, with a [SEP] between documents
    (FULL-SENTENCES of Liu et al. 2019, RoBERTa, section 4.2).

    The documents follow one another in the order of their keys, which are hashes; one pass over all of them after
    the other, a sequence never spanning two passes. Lengths, and sentences too long, are as for SingleStreams, by
    the document in which a sequence begins. Which documents share a sequence depends on the range: unlike in the
    other recipes, a document cut with other neighbours yields other sequences.
    """

    parts: ClassVar[int] = 1

    def pieces(self, corpus: Corpus, start: int, stop: int, seed: int, passes: Passes) -> Iterator[Segments]:
        """The sequences of documents start..stop-1, pass after pass. Labels are -1."""
        return self._walk(fill_full, corpus, start, stop, seed, passes)
