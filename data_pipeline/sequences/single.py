"""Build single sequences from documents: [CLS] text [SEP], without a label."""

from collections.abc import Iterator
from typing import ClassVar

from data_pipeline.records import Corpus, Segments
from data_pipeline.sequences.base import Passes, SequenceBuilder
from data_pipeline.sequences.single_kernels import fill_full, fill_streams


class SingleStreams(SequenceBuilder):
    """[CLS] text [SEP]: as many consecutive whole sentences of one document as fit
    (DOC-SENTENCES of Liu et al. 2019, RoBERTa, section 4.2).

    `short_seq_prob` acts as for pairs: with this probability, a pass over a document targets a random shorter length.
    A sentence longer than the target is a sequence by itself. One longer than the maximum is cut there, and its rest
    begins the next sequence, so that no token is lost. With `short_seq_prob` 0 all passes yield the same sequences,
    each with different masks.
    """

    parts: ClassVar[int] = 1

    def pieces(self, corpus: Corpus, start: int, stop: int, seed: int, passes: Passes) -> Iterator[Segments]:
        """Yield the sequences of documents start..stop-1, with `passes` over each. Labels are -1."""
        return self._walk(fill_streams, corpus, start, stop, seed, passes)


class FullSentences(SequenceBuilder):
    """As many whole sentences as fit, continuing from one document to the next, with a [SEP] between documents
    (FULL-SENTENCES of Liu et al. 2019, RoBERTa, section 4.2).

    Documents are in the order of their keys, which are hashes, one pass over all of them after another; a sequence
    never spans two passes. Target lengths and long sentences are treated as in SingleStreams, by the document in which
    a sequence begins. Which documents share a sequence depends on the range: unlike in the other builders, a document
    with different neighbours yields different sequences.
    """

    parts: ClassVar[int] = 1

    def pieces(self, corpus: Corpus, start: int, stop: int, seed: int, passes: Passes) -> Iterator[Segments]:
        """Yield the sequences of documents start..stop-1, pass after pass. Labels are -1."""
        return self._walk(fill_full, corpus, start, stop, seed, passes)
