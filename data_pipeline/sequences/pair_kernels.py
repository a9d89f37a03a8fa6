"""Build pairs from the flat columns of a Corpus in compiled loops.

The boundaries of BERT's pairs are computed here for both the fast and the exact mode: the order of the draws is that
of google-research/bert's create_pretraining_data.py, and the golden files test it.
"""

import numpy as np

from data_pipeline.compiled.jit import jit
from data_pipeline.compiled.mersenne_twister import PHILOX_WORDS, below, unit
from data_pipeline.compiled.splitmix import derive_key
from data_pipeline.records import NO_LABEL
from data_pipeline.sequences.kernels import (
    DOCUMENT,
    ORDINAL,
    POSITION,
    TARGET,
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
    donor = below(stream, len(keys))
    if len(stream) == PHILOX_WORDS:
        while keys[donor] == keys[document]:
            donor = below(stream, len(keys))
        return donor
    for _ in range(DONOR_TRIES - 1):
        if donor != document:
            break
        donor = below(stream, len(keys))
    return donor


@jit
def truncated(stream, pair, room):
    """Shorten the longer of the token ranges A and B at random ends (a tie shortens B) until both fit."""
    a0, a1, b0, b1 = pair
    while (a1 - a0) + (b1 - b0) > room:
        # without branches: coin tosses cannot be predicted
        front, of_a = np.int64(unit(stream) < 0.5), np.int64(a1 - a0 > b1 - b0)
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
        cut += below(stream, stop - position - 1)
    a0, a1 = starts[position], starts[cut]
    is_random = stop - position == 1 or unit(stream) < random_next
    donor = document
    if is_random:
        donor = draw_donor(stream, keys, document)
        first = firsts[donor] + below(stream, lasts[donor] - firsts[donor])
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
def next_sentence_pair(stream, columns, document, position, room, random_next):
    """Make the pair of single sentences that begins at sentence `position`; returns as next_pair."""
    _, starts, firsts, lasts, keys, _, files = columns
    a0, a1 = starts[position], starts[position + 1]
    is_random = position + 1 == lasts[document] or unit(stream) < random_next
    donor, first, onward = document, position + 1, position + 2
    if is_random:
        donor = draw_donor(stream, keys, document)
        first = firsts[donor] + below(stream, lasts[donor] - firsts[donor])
        onward = position + 1
    b0, b1 = sentence_start(starts, files, first), sentence_start(starts, files, first + 1)
    return truncated(stream, (a0, a1, b0, b1), room), np.int8(is_random), donor, onward


@jit
def next_ordered_pair(stream, columns, document, position, target, room, swapped_share):
    """Make a pair of the two parts, perhaps swapped, of the chunk that begins at sentence `position`; returns as
    next_pair. If the whole document is one token, B is empty and there is no label."""
    _, starts, _, lasts, _, _, _ = columns
    stop, end = position + 1, starts[lasts[document]]
    # a single remaining token could not be split
    while stop < lasts[document] and (starts[stop] - starts[position] < target or end - starts[stop] == 1):
        stop += 1
    a0, b1 = starts[position], starts[stop]
    if b1 - a0 == 1:
        return (a0, b1, b1, b1), np.int8(NO_LABEL), document, stop
    if stop - position > 1:
        cut = starts[position + 1 + below(stream, stop - position - 1)]
    else:
        cut = a0 + 1 + below(stream, b1 - a0 - 1)
    swapped = unit(stream) < swapped_share
    ranges = (cut, b1, a0, cut) if swapped else (a0, cut, cut, b1)
    return truncated(stream, ranges, room), np.int8(swapped), document, stop


@jit
def next_two_segments(stream, columns, document, position, room, single_room, short_share):
    """Make the example of one or two segments that begins at sentence `position`; returns as next_pair, without a
    label. `room`, `single_room`: tokens of text that fit into two segments and into one."""
    _, starts, _, lasts, _, _, _ = columns
    target = room + 3
    if unit(stream) < short_share:
        target = SHORTEST + below(stream, max(target - SHORTEST + 1, 1))
    stop, a0 = position + 1, starts[position]
    while stop < lasts[document] and starts[stop] - a0 < target:
        stop += 1
    half = (target - 3) // 2
    cut = stop
    if unit(stream) >= ONE_SEGMENT:
        cut = position + 1
        while cut < stop and (
            starts[cut + 1] - a0 < half or (starts[cut] - a0 < half and unit(stream) < 0.5)
        ):
            cut += 1
    a1 = min(starts[cut], a0 + single_room)
    b0 = starts[cut]
    b1 = min(starts[stop], b0 + max(room - (a1 - a0), 0))
    return (a0, a1, b0, b1), np.int8(NO_LABEL), document, stop


@jit
def fill_pairs(kind, walk, stream, numbers, passes, columns, frame, out):
    """Write pairs of `kind` = (which, share of label 1) into the buffers `out` until the documents are done or a buffer
    is full; return how many. `numbers`: seed, first and last + 1 document, room, short_seq_prob; `passes`: of each of
    these documents."""
    _, _, stop, room, short_share = numbers
    which, share = kind
    lasts, sources = columns[3], columns[5]
    tokens, offsets, first_lengths, labels, keys, first_sources, last_sources = out
    made = 0
    while walk[DOCUMENT] < stop and made < len(keys) and offsets[made] + room + 3 <= len(tokens):
        key = begin(walk, stream, numbers, columns)
        document = walk[DOCUMENT]
        if which == SENTENCE_PAIR:
            pair, label, donor, onward = next_sentence_pair(
                stream, columns, document, walk[POSITION], room, share
            )
        elif which == SENTENCE_ORDER:
            pair, label, donor, onward = next_ordered_pair(
                stream, columns, document, walk[POSITION], walk[TARGET], room, share
            )
        elif which == TWO_SEGMENTS:
            pair, label, donor, onward = next_two_segments(
                stream, columns, document, walk[POSITION], room, room + frame[2], short_share
            )
        else:
            pair, label, donor, onward = next_pair(
                stream, columns, document, walk[POSITION], walk[TARGET], room, share
            )
        if pair[2] == pair[3]:
            whole = write_stream(columns[0], pair[0], pair[1], frame, tokens, offsets[made])
            first = whole
        else:
            first, whole = write_pair(columns[0], columns[6], pair, frame, tokens, offsets[made])
        offsets[made + 1] = offsets[made] + whole
        first_lengths[made], labels[made], keys[made] = first, label, derive_key(key, walk[ORDINAL])
        first_sources[made], last_sources[made] = sources[document], sources[donor]
        made += 1
        go_on(walk, onward, 0, numbers, passes, lasts[document])
    return made
