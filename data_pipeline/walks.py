"""The compiled walks behind the recipes of segments.py: flat columns of a Corpus in, sequences out in buffers.

Where a pair or a stream begins and ends is decided here, once for the fast and the exact mode: the order
of the draws is that of google-research/bert's create_pretraining_data.py, and the golden files hold it fast.
`columns` are what `flat_columns` returns; a range of tokens is a pair of numbers, nothing is copied until
a sequence is written.
"""

import numpy as np

from data_pipeline.draws import SEGMENTS, jit, start
from data_pipeline.records import NO_LABEL
from data_pipeline.twister import PHILOX_WORDS, below, unit

DONOR_TRIES = 10
"""Draws of a donor document before Google's script lets a document be its own donor."""

# What a walk remembers from one buffer to the next, by its place in an array of int64.
DOCUMENT, PASS, POSITION, TOKEN, TARGET, ORDINAL = range(6)
AT_START = -1  # as POSITION: this pass over the document has not begun

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@jit
def mix(key, number):
    """A 64-bit key from a key and a number from 0: SplitMix64's step (Steele et al. 2014), so that for one
    key all numbers, and for one number all keys, give different results."""
    x = key + _GOLDEN * np.uint64(number + 1)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@jit
def draw_target(stream, room, short_seq_prob):
    """The length that one pass over a document aims at."""
    if unit(stream) < short_seq_prob:
        return 2 + below(stream, room - 1)
    return room


@jit
def draw_donor(stream, keys, document):
    """A document other than `document`. As the script draws (a stream of Python's draws), it may after
    DONOR_TRIES tries be the same one."""
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
def next_pair(stream, columns, document, position, target, room):
    """The pair that begins at sentence `position` of `document`: the token ranges of A and of B, the label,
    and the sentence where the next pair begins. The order of the draws is the script's."""
    _, starts, firsts, lasts, keys = columns
    stop = position + 1
    while stop < lasts[document] and starts[stop] - starts[position] < target:
        stop += 1
    cut = position + 1
    if stop - position > 1:
        cut += below(stream, stop - position - 1)
    a0, a1 = starts[position], starts[cut]
    random_next = stop - position == 1 or unit(stream) < 0.5
    if random_next:
        donor = draw_donor(stream, keys, document)
        first = firsts[donor] + below(stream, lasts[donor] - firsts[donor])
        last = first + 1
        while last < lasts[donor] and starts[last] - starts[first] < target - (a1 - a0):
            last += 1
        b0, b1, onward = starts[first], starts[last], cut
    else:
        b0, b1, onward = starts[cut], starts[stop], stop
    while (a1 - a0) + (b1 - b0) > room:
        front = unit(stream) < 0.5
        if a1 - a0 > b1 - b0:
            a0, a1 = (a0 + 1, a1) if front else (a0, a1 - 1)
        else:
            b0, b1 = (b0 + 1, b1) if front else (b0, b1 - 1)
    return a0, a1, b0, b1, np.int8(random_next), onward


@jit
def next_stream(starts, last, position, token, target, room):
    """The token where the sequence ends that begins at `token` of sentence `position`, and the sentence
    where the next one begins."""
    end = starts[position + 1]
    onward = position + 1
    while onward < last and starts[onward + 1] - token <= target:
        onward += 1
        end = starts[onward]
    if end - token > room:
        return token + room, position
    return end, onward


@jit
def write_pair(tokens, pair, specials, out, at):
    """Writes [CLS] A [SEP] B [SEP] to out[at:]; returns the tokens of segment 0 and of both."""
    a0, a1, b0, b1 = pair
    cls, sep = specials
    first, whole = a1 - a0 + 2, a1 - a0 + b1 - b0 + 3
    out[at] = cls
    out[at + 1 : at + first - 1] = tokens[a0:a1]
    out[at + first - 1] = sep
    out[at + first : at + whole - 1] = tokens[b0:b1]
    out[at + whole - 1] = sep
    return first, whole


@jit
def _begin(walk, stream, numbers, columns):
    """Starts the pass at hand over the document at hand if that is still to do; returns the pass's key."""
    seed, _, _, room, short_seq_prob = numbers
    _, starts, firsts, _, keys = columns
    key = mix(keys[walk[DOCUMENT]], walk[PASS])
    if walk[POSITION] == AT_START:
        start(stream, seed, key, np.uint64(SEGMENTS))
        walk[POSITION], walk[ORDINAL] = firsts[walk[DOCUMENT]], 0
        walk[TOKEN] = starts[walk[POSITION]]
        walk[TARGET] = draw_target(stream, room, short_seq_prob)
    return key


@jit
def _go_on(walk, position, token, passes, last):
    """Moves to where the next sequence begins: in this pass, the next pass, or the next document."""
    walk[POSITION], walk[TOKEN] = position, token
    walk[ORDINAL] += 1
    if position == last:
        walk[POSITION] = AT_START
        walk[PASS] += 1
        if walk[PASS] == passes:
            walk[DOCUMENT], walk[PASS] = walk[DOCUMENT] + 1, 0


@jit
def fill_pairs(walk, stream, numbers, columns, specials, out):
    """Writes pairs into the buffers `out` until the documents are done or a buffer is full; returns how many."""
    _, stop, passes, room, _ = numbers
    tokens, offsets, first_lengths, labels, keys = out
    made = 0
    while walk[DOCUMENT] < stop and made < len(keys) and offsets[made] + room + 3 <= len(tokens):
        key = _begin(walk, stream, numbers, columns)
        document = walk[DOCUMENT]
        a0, a1, b0, b1, label, onward = next_pair(
            stream, columns, document, walk[POSITION], walk[TARGET], room
        )
        first, whole = write_pair(columns[0], (a0, a1, b0, b1), specials, tokens, offsets[made])
        offsets[made + 1] = offsets[made] + whole
        first_lengths[made], labels[made], keys[made] = first, label, mix(key, walk[ORDINAL])
        made += 1
        _go_on(walk, onward, 0, passes, columns[3][document])
    return made


@jit
def fill_streams(walk, stream, numbers, columns, specials, out):
    """Writes single streams into the buffers `out`, as fill_pairs does pairs."""
    _, stop, passes, room, _ = numbers
    tokens, offsets, first_lengths, labels, keys = out
    made = 0
    while walk[DOCUMENT] < stop and made < len(keys) and offsets[made] + room + 2 <= len(tokens):
        key = _begin(walk, stream, numbers, columns)
        last = columns[3][walk[DOCUMENT]]
        end, onward = next_stream(columns[1], last, walk[POSITION], walk[TOKEN], walk[TARGET], room)
        at, whole = offsets[made], end - walk[TOKEN] + 2
        tokens[at] = specials[0]
        tokens[at + 1 : at + whole - 1] = columns[0][walk[TOKEN] : end]
        tokens[at + whole - 1] = specials[1]
        offsets[made + 1] = at + whole
        first_lengths[made], labels[made], keys[made] = whole, NO_LABEL, mix(key, walk[ORDINAL])
        made += 1
        _go_on(walk, onward, end, passes, last)
    return made
