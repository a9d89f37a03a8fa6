"""Build pairs, [CLS] A [SEP] B [SEP], from documents.

`next_pair` makes the pairs of the exact mode: the order of the draws is that of google-research/bert's
create_pretraining_data.py, and the golden files test it. That script cuts off what does not fit, and the text is
lost.

The loops of the fast mode lose nothing. A document is one run of tokens: an example takes the text from where the
one before ended, as much of it as fits, and what does not fit begins the next one. So a walk stands at a token,
perhaps inside a sentence, whose rest counts as a sentence.
"""

from collections.abc import Iterator
from functools import partial
from typing import ClassVar

import numpy as np

from data_pipeline.errors import UserError
from data_pipeline.jit import jit
from data_pipeline.records import NO_LABEL, Corpus, Segments
from data_pipeline.rng import PHILOX_WORDS, derive_key, draw_below, draw_unit
from data_pipeline.sequences.base import (
    DOCUMENT,
    ORDINAL,
    PASS,
    POSITION,
    TARGET,
    TOKEN,
    USED,
    Passes,
    SequenceBuilder,
    begin,
    go_on,
    sentence_start,
    write_pair,
    write_stream,
)

# Make pairs from the flat columns of a Corpus, in compiled loops. The functions of the fast mode return the token
# ranges of A and B, the label, the document of B, the token where the next example begins, and a sentence that begins
# there or later.

DONOR_TRIES = 10
"""Draws of a donor document before Google's script lets a document be its own donor."""

ONE_SEGMENT, SHORTEST = 0.1, 5
"""ELECTRA's script: share of its examples with one segment, and the least target of a shorter example."""

SEGMENT_PAIR, SENTENCE_PAIR, SENTENCE_ORDER, TWO_SEGMENTS = range(4)
"""The kinds of pairs that `fill_pairs` makes."""


@jit
def draw_donor(stream, keys, document):
    """Draw a document other than `document`. With a stream of Python's draws, as in Google's script, it may be the same
    one after DONOR_TRIES tries."""
    donor = draw_below(stream, len(keys))
    if len(stream) == PHILOX_WORDS:
        while keys[donor] == keys[document]:
            donor = draw_below(stream, len(keys))
        return donor
    for _ in range(DONOR_TRIES - 1):
        if donor != document:
            break
        donor = draw_below(stream, len(keys))
    return donor


@jit
def truncated(stream, pair, room):
    """Shorten the longer of the token ranges A and B at random ends (a tie shortens B) until both fit."""
    a0, a1, b0, b1 = pair
    while (a1 - a0) + (b1 - b0) > room:
        # without branches: coin tosses cannot be predicted
        front, of_a = np.int64(draw_unit(stream) < 0.5), np.int64(a1 - a0 > b1 - b0)
        a0 += of_a & front
        a1 -= of_a & ~front
        b0 += ~of_a & front
        b1 -= ~of_a & ~front & 1
    return a0, a1, b0, b1


@jit
def next_pair(stream, columns, document, position, target, room, random_next):
    """Make the pair of segments that begins at sentence `position` of `document`; return the token ranges of A and B,
    the label, the document of B, and the sentence where the next pair begins. The draws are in the script's order.
    `random_next`: share of random B."""
    _, starts, firsts, lasts, keys, _, files = columns
    stop = position + 1
    while stop < lasts[document] and starts[stop] - starts[position] < target:
        stop += 1
    cut = position + 1
    if stop - position > 1:
        cut += draw_below(stream, stop - position - 1)
    a0, a1 = starts[position], starts[cut]
    is_random = stop - position == 1 or draw_unit(stream) < random_next
    donor = document
    if is_random:
        donor = draw_donor(stream, keys, document)
        first = firsts[donor] + draw_below(stream, lasts[donor] - firsts[donor])
        b0, b1 = sentence_start(starts, files, first), sentence_start(starts, files, first + 1)
        last = first + 1
        while last < lasts[donor] and b1 - b0 < target - (a1 - a0):
            last += 1
            b1 = sentence_start(starts, files, last)
        onward = cut
    else:
        b0, b1, onward = starts[cut], starts[stop], stop
    return truncated(stream, (a0, a1, b0, b1), room), np.int8(is_random), donor, onward


@jit
def _random_sentences(stream, columns, document, wanted, most):
    """Draw B from another document: sentences from a random one on until they have `wanted` tokens, cut to `most`.
    Return its document and token range."""
    _, starts, firsts, lasts, keys, _, files = columns
    donor = draw_donor(stream, keys, document)
    first = firsts[donor] + draw_below(stream, lasts[donor] - firsts[donor])
    b0, b1 = sentence_start(starts, files, first), sentence_start(starts, files, first + 1)
    last = first + 1
    while last < lasts[donor] and b1 - b0 < wanted:
        last += 1
        b1 = sentence_start(starts, files, last)
    return donor, b0, min(b1, b0 + most)


@jit
def _random_piece(stream, columns, document, size):
    """Draw B from another document: `size` tokens from anywhere in it, or all of it; returns as _random_sentences."""
    _, starts, firsts, lasts, keys, _, files = columns
    donor = draw_donor(stream, keys, document)
    b0, end = sentence_start(starts, files, firsts[donor]), sentence_start(starts, files, lasts[donor])
    b0 += draw_below(stream, max(end - b0 - size, 0) + 1)
    return donor, b0, min(b0 + size, end)


@jit
def _halves_of_sentence(stream, columns, document, a0, stop, room, random_next):
    """Make the pair of a sentence that fills the room alone: its next piece follows A, or one from another document.
    That B begins inside a sentence as well, else its beginning would tell the label."""
    a1 = a0 + (room + 1) // 2
    if draw_unit(stream) < random_next:
        donor, b0, b1 = _random_piece(stream, columns, document, a0 + room - a1)
        return (a0, a1, b0, b1), np.int8(1), donor, a1, stop
    return (a0, a1, a1, a0 + room), np.int8(0), document, a0 + room, stop


@jit
def next_segments(stream, columns, document, position, a0, target, room, random_next):
    """Make the pair of segments that begins at token `a0` of sentence `position`: sentences until they reach `target`,
    parted at a random one. B alone is cut to what A leaves of the room, be it the next text or random."""
    starts, lasts = columns[1], columns[3]
    stop = position + 1
    while stop < lasts[document] and starts[stop] - a0 < target:
        stop += 1
    alone = stop - position == 1
    if alone and starts[stop] - a0 >= room:
        return _halves_of_sentence(stream, columns, document, a0, stop, room, random_next)
    cut = position + 1
    if not alone:
        cut += draw_below(stream, stop - position - 1)
    a1 = starts[cut]
    if alone or draw_unit(stream) < random_next:
        donor, b0, b1 = _random_sentences(stream, columns, document, target - (a1 - a0), room - (a1 - a0))
        return (a0, a1, b0, b1), np.int8(1), donor, a1, cut
    b1 = min(starts[stop], a0 + room)
    return (a0, a1, a1, b1), np.int8(0), document, b1, stop


@jit
def next_sentence_pair(stream, columns, document, position, a0, room, random_next):
    """Make the pair of single sentences that begins at token `a0` of sentence `position`; B is cut as in
    next_segments."""
    starts, lasts = columns[1], columns[3]
    stop = position + 1
    a1 = starts[stop]
    if a1 - a0 >= room:
        return _halves_of_sentence(stream, columns, document, a0, stop, room, random_next)
    if stop == lasts[document] or draw_unit(stream) < random_next:
        donor, b0, b1 = _random_sentences(stream, columns, document, 1, room - (a1 - a0))
        return (a0, a1, b0, b1), np.int8(1), donor, a1, stop
    b1 = min(starts[stop + 1], a0 + room)
    return (a0, a1, a1, b1), np.int8(0), document, b1, stop + 1


@jit
def next_ordered_pair(stream, columns, document, position, a0, target, room, swapped_share):
    """Make a pair of the two parts, perhaps swapped, of the chunk that begins at token `a0` of sentence `position`:
    whole sentences until they reach `target`, as many as fit, since an end that is cut off would tell the order. Where
    not two of them fit, the chunk is all that fits, parted at a random token. If only one token is left, B is empty
    and there is no label."""
    starts, lasts = columns[1], columns[3]
    stop, last, end = position + 1, lasts[document], starts[lasts[document]]
    # a single remaining token could not be split
    while (
        stop < last
        and starts[stop + 1] - a0 <= room
        and (starts[stop] - a0 < target or end - starts[stop] == 1)
    ):
        stop += 1
    whole = stop - position > 1
    if not whole and stop < last and starts[stop] - a0 < target:
        stop += 1
    b1 = min(starts[stop], a0 + room)
    if end - b1 == 1 and b1 - a0 > 2:
        b1 -= 1
    if b1 - a0 == 1:
        return (a0, b1, b1, b1), np.int8(NO_LABEL), document, b1, stop
    while stop - position > 1 and starts[stop - 1] >= b1:
        stop -= 1
    if whole and stop - position > 1:
        cut = starts[position + 1 + draw_below(stream, stop - position - 1)]
    else:
        cut = a0 + 1 + draw_below(stream, b1 - a0 - 1)
    swapped = draw_unit(stream) < swapped_share
    ranges = (cut, b1, a0, cut) if swapped else (a0, cut, cut, b1)
    return ranges, np.int8(swapped), document, b1, stop


@jit
def next_two_segments(stream, columns, document, position, a0, room, single_room, short_share):
    """Make the example of one or two segments that begins at token `a0` of sentence `position`, without a label.
    `room`, `single_room`: tokens of text that fit into two segments and into one."""
    starts, lasts = columns[1], columns[3]
    target = room + 3
    if draw_unit(stream) < short_share:
        target = SHORTEST + draw_below(stream, max(target - SHORTEST + 1, 1))
    stop = position + 1
    while stop < lasts[document] and starts[stop] - a0 < target:
        stop += 1
    half = (target - 3) // 2
    cut = stop
    if draw_unit(stream) >= ONE_SEGMENT:
        cut = position + 1
        while cut < stop and (
            starts[cut + 1] - a0 < half or (starts[cut] - a0 < half and draw_unit(stream) < 0.5)
        ):
            cut += 1
    a1 = min(starts[cut], a0 + single_room)
    b1 = a1
    if cut < stop and a1 - a0 < room:
        b1 = min(starts[stop], a0 + room)
    return (a0, a1, a1, b1), np.int8(NO_LABEL), document, b1, stop


@jit
def fill_pairs(kind, walk, stream, numbers, passes, columns, frame, out):
    """Write pairs of `kind` = (which, share of label 1) into the buffers `out` until the documents are done or a buffer
    is full; return how many. `numbers`: seed, first and last + 1 document, room, short_seq_prob; `passes`: of each of
    these documents."""
    _, _, stop, room, short_share = numbers
    which, share = kind
    lasts, sources = columns[3], columns[5]
    tokens, offsets, first_lengths, labels, keys, first_sources, last_sources = out
    starts = columns[1]
    made = 0
    while walk[DOCUMENT] < stop and made < len(keys) and offsets[made] + room + 3 <= len(tokens):
        key = begin(walk, stream, numbers, columns)
        document, position, token = walk[DOCUMENT], walk[POSITION], walk[TOKEN]
        if which == SENTENCE_PAIR:
            pair, label, donor, end, onward = next_sentence_pair(
                stream, columns, document, position, token, room, share
            )
        elif which == SENTENCE_ORDER:
            pair, label, donor, end, onward = next_ordered_pair(
                stream, columns, document, position, token, walk[TARGET], room, share
            )
        elif which == TWO_SEGMENTS:
            pair, label, donor, end, onward = next_two_segments(
                stream, columns, document, position, token, room, room + frame[2], short_share
            )
        else:
            pair, label, donor, end, onward = next_segments(
                stream, columns, document, position, token, walk[TARGET], room, share
            )
        a0, a1, b0, b1 = pair
        if b0 == b1:
            whole = write_stream(columns[0], a0, a1, frame, tokens, offsets[made])
            first = whole
        else:
            first, whole = write_pair(columns[0], columns[6], pair, frame, tokens, offsets[made])
        offsets[made + 1] = offsets[made] + whole
        first_lengths[made], labels[made], keys[made] = first, label, derive_key(key, walk[ORDINAL])
        first_sources[made], last_sources[made] = sources[document], sources[donor]
        made += 1
        if walk[PASS] == 0 and (which != SENTENCE_ORDER or label != NO_LABEL):
            walk[USED] += a1 - a0 + (b1 - b0 if donor == document else 0)
        while starts[onward] > end:
            onward -= 1
        go_on(walk, onward, end, numbers, passes, lasts[document])
    return made


# Define the builders of pairs.

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
