"""Build pairs, [CLS] A [SEP] B [SEP], from documents."""

from collections.abc import Iterator
from functools import partial
from typing import ClassVar

from data_pipeline.errors import UserError
from data_pipeline.records import Corpus, Segments
from data_pipeline.sequences.base import Passes, SequenceBuilder
from data_pipeline.sequences.pair_kernels import (
    SEGMENT_PAIR,
    SENTENCE_ORDER,
    SENTENCE_PAIR,
    TWO_SEGMENTS,
    fill_pairs,
)

ALONE = "add text, part it by blank lines, or train without pairs: objective.name=mlm"
"""Remedy if there is no other document to draw a random next segment from."""


class NextSentencePairs(SequenceBuilder):
    """BERT's [CLS] A [SEP] B [SEP] (Devlin et al. 2019, section 3.1 and appendix A.2).

    A pass over a document draws one target length: usually the maximum, with probability `short_seq_prob` a random
    shorter one. Sentences are gathered until they reach it and split in two at random: A and its true next B
    (label 0), or, half the time (`random_next`) and whenever there is only one sentence, A and a random B (label 1),
    which starts at a random sentence of another document, chosen uniformly.

    What is not used is put back and begins the next pair. So is what does not fit: B is cut to what A leaves of the
    room. Google's script cuts the longer of A and B at random ends, and the text is lost. A sentence that fills the
    room alone is cut into pieces: A is half a room of it, B the next piece, or as many tokens from anywhere in another
    document. So each token of a document is in one A or true B per pass.
    """

    parts: ClassVar[int] = 2
    kind: ClassVar[int] = SEGMENT_PAIR

    def pieces(self, corpus: Corpus, start: int, stop: int, seed: int, passes: Passes) -> Iterator[Segments]:
        """Yield the pairs of documents start..stop-1, with `passes` over each; donors come from all of `corpus`,
        which may be memory-mapped. Raises UserError if there is no other document to draw from."""
        if start < stop and corpus.keys[0] == corpus.keys[-1] and (corpus.keys == corpus.keys[0]).all():
            raise UserError(
                "a random next segment needs another document, and there is only one",
                where="data.sources",
                expected="two documents or more",
                remedy=ALONE,
            )
        return self._walk(
            partial(fill_pairs, (self.kind, float(self.random_next))), corpus, start, stop, seed, passes
        )


class SentencePairs(NextSentencePairs):
    """Pairs of single natural sentences (SENTENCE-PAIR+NSP of Liu et al. 2019, RoBERTa, section 4.2).

    A is a sentence. B is the next one (label 0), which is then used up, or, half the time and after a document's last
    sentence, a random sentence of another document (label 1). Sentences keep their natural lengths: `short_seq_prob`
    has no effect. What does not fit is treated as in NextSentencePairs: each token is in A or true B once per pass.
    """

    kind: ClassVar[int] = SENTENCE_PAIR


class OrderedPairs(SequenceBuilder):
    """ALBERT's sentence order (Lan et al. 2020, section 3.1): [CLS] A [SEP] B [SEP], both consecutive text of one
    document, half the time swapped (label 1). Segment ids follow position: 0, then 1, swapped or not.

    Sentences are gathered until they reach a target drawn as for BERT's pairs, as many as fit, and split in two at
    random. The rest is put back, in whole sentences: an end that is cut off would show which part came last. ALBERT's
    script gathers beyond the room and cuts at random ends, and the text is lost. Where not two sentences fit, the chunk
    is all that fits, split at a random token; ALBERT's script takes a random B from another document there, here a
    label always means the order. If a single token would be left of a document, the chunk before gives it one, or takes
    it; a document of one token becomes [CLS] text [SEP] without a label (-1).
    """

    parts: ClassVar[int] = 2
    least_tokens: ClassVar[int] = 2

    def pieces(self, corpus: Corpus, start: int, stop: int, seed: int, passes: Passes) -> Iterator[Segments]:
        """Yield the pairs of documents start..stop-1, with `passes` over each."""
        return self._walk(
            partial(fill_pairs, (SENTENCE_ORDER, float(self.random_next))), corpus, start, stop, seed, passes
        )


class TwoSegments(SequenceBuilder):
    """ELECTRA's examples (Clark et al. 2020; google-research/electra, build_pretraining_dataset.py): consecutive text
    of one document, nine times in ten as two segments, [CLS] A [SEP] B [SEP], without a label.

    Sentences are gathered until they reach `sequence_length`, or with probability `short_seq_prob`, drawn for each
    example, a random shorter target. A is the sentences that fit into half of the target, and half the time the one
    that exceeds it; B is the rest. What is too long is cut at the end. In the script what is cut off is lost; here it
    begins the next example. There a short sentence can still go to A when B has begun; here text keeps its order.
    """

    parts: ClassVar[int] = 2

    def pieces(self, corpus: Corpus, start: int, stop: int, seed: int, passes: Passes) -> Iterator[Segments]:
        """Yield the examples of documents start..stop-1, with `passes` over each. Labels are -1."""
        return self._walk(partial(fill_pairs, (TWO_SEGMENTS, 0.0)), corpus, start, stop, seed, passes)
