"""Draw targets, step through documents and write sequences: the code shared by all compiled loops over documents.

A walk steps from sequence to sequence through the flat columns of a Corpus (`flat_columns`); a range of tokens is a
pair of numbers, and nothing is copied until a sequence is written into the buffers. The walks themselves are in
pair_kernels.py and single_kernels.py.
"""

import numpy as np

from data_pipeline.jit import copy_run, jit
from data_pipeline.rng import SEGMENTS, derive_key, mersenne_below, mersenne_unit, start
from data_pipeline.sequences.random_reads import copy_tokens

# The state of a walk between buffers: indices into an array of int64.
DOCUMENT, PASS, POSITION, TOKEN, TARGET, ORDINAL, USED = range(7)
# USED counts the tokens of the documents that the first pass over each has put into sequences.
AT_START = -1  # as POSITION: this pass over the document has not begun


@jit
def draw_target(stream, room, short_seq_prob):
    """Draw the target length of one pass over a document."""
    if mersenne_unit(stream) < short_seq_prob:
        return 2 + mersenne_below(stream, room - 1)
    return room


@jit
def begin(walk, stream, numbers, columns):
    """Start the current pass over the current document unless it has begun; return the pass's key."""
    seed, _, _, room, short_seq_prob = numbers
    starts, firsts, keys = columns[1], columns[2], columns[4]
    key = derive_key(keys[walk[DOCUMENT]], walk[PASS])
    if walk[POSITION] == AT_START:
        start(stream, seed, key, np.uint64(SEGMENTS))
        walk[POSITION], walk[ORDINAL] = firsts[walk[DOCUMENT]], 0
        walk[TOKEN] = starts[walk[POSITION]]
        walk[TARGET] = draw_target(stream, room, short_seq_prob)
    return key


@jit
def go_on(walk, position, token, numbers, passes, last):
    """Move to the start of the next sequence: in this pass, the next pass, or the next document that has one.
    `passes`: of documents first..stop-1."""
    _, first, stop, _, _ = numbers
    walk[POSITION], walk[TOKEN] = position, token
    walk[ORDINAL] += 1
    if position == last:
        walk[POSITION] = AT_START
        walk[PASS] += 1
        while walk[DOCUMENT] < stop and walk[PASS] >= passes[walk[DOCUMENT] - first]:
            walk[DOCUMENT], walk[PASS] = walk[DOCUMENT] + 1, 0


@jit
def write_pair(tokens, files, pair, frame, out, at):
    """Write [CLS] A [SEP] B [SEP] to out[at:], or [CLS] A B; return the token counts of segment 0 and of the whole.
    `frame`: ids of [CLS] and [SEP], and 1 with separators, 0 without. `files`: source of B (random_reads.py)."""
    a0, a1, b0, b1 = pair
    cls, sep, separators = frame
    first = 1 + a1 - a0 + separators
    whole = first + b1 - b0 + separators
    out[at] = cls
    copy_run(out, at + 1, tokens, a0, a1)
    copy_tokens(tokens, files, b0, b1, out[at + first :])
    if separators:
        out[at + first - 1] = sep
        out[at + whole - 1] = sep
    return first, whole


@jit
def write_stream(tokens, begins, ends, frame, out, at):
    """Write [CLS] text [SEP] to out[at:], or [CLS] text; return its number of tokens."""
    cls, sep, separators = frame
    whole = 1 + ends - begins + separators
    out[at] = cls
    copy_run(out, at + 1, tokens, begins, ends)
    if separators:
        out[at + whole - 1] = sep
    return whole
