"""Build pairs from the flat columns of a Corpus in compiled loops.

`next_pair` makes the pairs of the exact mode: the order of the draws is that of google-research/bert's
create_pretraining_data.py, and the golden files test it. That script cuts off what does not fit, and the text is lost.

The loops of the fast mode lose nothing. A document is one run of tokens: an example takes the text from where the one
before ended, as much of it as fits, and what does not fit begins the next one. So a walk stands at a token, perhaps
inside a sentence, whose rest counts as a sentence. They return the token ranges of A and B, the label, the document of
B, the token where the next example begins, and a sentence that begins there or later.
"""

import numpy as np

from data_pipeline.jit import jit
from data_pipeline.records import NO_LABEL
from data_pipeline.rng import PHILOX_WORDS, derive_key, mersenne_below, mersenne_unit
from data_pipeline.sequences.kernels import (
    DOCUMENT,
    ORDINAL,
    PASS,
    POSITION,
    TARGET,
    TOKEN,
    USED,
    begin,
    go_on,
    write_pair,
    write_stream,
)
from data_pipeline.sequences.random_reads import sentence_start

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
    donor = mersenne_below(stream, len(keys))
    if len(stream) == PHILOX_WORDS:
        while keys[donor] == keys[document]:
            donor = mersenne_below(stream, len(keys))
        return donor
    for _ in range(DONOR_TRIES - 1):
        if donor != document:
            break
        donor = mersenne_below(stream, len(keys))
    return donor


@jit
def truncated(stream, pair, room):
    """Shorten the longer of the token ranges A and B at random ends (a tie shortens B) until both fit."""
    a0, a1, b0, b1 = pair
    while (a1 - a0) + (b1 - b0) > room:
        # without branches: coin tosses cannot be predicted
        front, of_a = np.int64(mersenne_unit(stream) < 0.5), np.int64(a1 - a0 > b1 - b0)
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
        cut += mersenne_below(stream, stop - position - 1)
    a0, a1 = starts[position], starts[cut]
    is_random = stop - position == 1 or mersenne_unit(stream) < random_next
    donor = document
    if is_random:
        donor = draw_donor(stream, keys, document)
        first = firsts[donor] + mersenne_below(stream, lasts[donor] - firsts[donor])
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
    first = firsts[donor] + mersenne_below(stream, lasts[donor] - firsts[donor])
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
    b0 += mersenne_below(stream, max(end - b0 - size, 0) + 1)
    return donor, b0, min(b0 + size, end)


@jit
def _halves_of_sentence(stream, columns, document, a0, stop, room, random_next):
    """Make the pair of a sentence that fills the room alone: its next piece follows A, or one from another document.
    That B begins inside a sentence as well, else its beginning would tell the label."""
    a1 = a0 + (room + 1) // 2
    if mersenne_unit(stream) < random_next:
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
        cut += mersenne_below(stream, stop - position - 1)
    a1 = starts[cut]
    if alone or mersenne_unit(stream) < random_next:
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
    if stop == lasts[document] or mersenne_unit(stream) < random_next:
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
        cut = starts[position + 1 + mersenne_below(stream, stop - position - 1)]
    else:
        cut = a0 + 1 + mersenne_below(stream, b1 - a0 - 1)
    swapped = mersenne_unit(stream) < swapped_share
    ranges = (cut, b1, a0, cut) if swapped else (a0, cut, cut, b1)
    return ranges, np.int8(swapped), document, b1, stop


@jit
def next_two_segments(stream, columns, document, position, a0, room, single_room, short_share):
    """Make the example of one or two segments that begins at token `a0` of sentence `position`, without a label.
    `room`, `single_room`: tokens of text that fit into two segments and into one."""
    starts, lasts = columns[1], columns[3]
    target = room + 3
    if mersenne_unit(stream) < short_share:
        target = SHORTEST + mersenne_below(stream, max(target - SHORTEST + 1, 1))
    stop = position + 1
    while stop < lasts[document] and starts[stop] - a0 < target:
        stop += 1
    half = (target - 3) // 2
    cut = stop
    if mersenne_unit(stream) >= ONE_SEGMENT:
        cut = position + 1
        while cut < stop and (
            starts[cut + 1] - a0 < half or (starts[cut] - a0 < half and mersenne_unit(stream) < 0.5)
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
