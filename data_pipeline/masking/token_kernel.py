"""Mask the tokens of sequences one by one: the commonest kind of masking, draw for draw what the general loop does, in
a third of its time.

A group is a single token here, so that a candidate is a position, what is covered fits in a set of bits, and listing
it in order is to walk over these bits.
"""

import numpy as np
from numpy.typing import NDArray

from data_pipeline.compiled.intrinsics import multiply_high, trailing_zeros
from data_pipeline.compiled.jit import jit
from data_pipeline.compiled.philox import philox

_ONE, _WORD = np.uint64(1), np.uint64(63)
_UNIT = 1.0 / 9007199254740992.0  # 53 random bits to [0, 1), as draws.unit


@jit
def nth_word(block, key, number):
    """Word `number` of the stream key = (seed, key, purpose); `block` holds the four around the one before it."""
    if number & 3 == 0:
        philox(key[0], key[1], np.uint64(number >> 2), key[2], block)
    return block[number & 3]


@jit
def list_candidates(sequence, cls, sep, members):
    """The positions of all tokens but [CLS] and [SEP], into `members`; returns how many."""
    found = 0
    for i in range(len(sequence)):
        members[found] = i
        found += (sequence[i] != cls) & (sequence[i] != sep)
    return found


@jit
def cover(key, k, candidates, rule, corrupted, block, bits):
    """Draws k of the candidates, one by one, replaces each in `corrupted` and sets its bit."""
    _, _, mask, vocabulary_size, mask_prob, keep_prob = rule
    drawn = 0
    for c in range(k):
        other = c + np.int64(multiply_high(nth_word(block, key, drawn), np.uint64(len(candidates) - c)))
        position = np.int64(candidates[other])
        candidates[other] = candidates[c]
        bits[position >> 6] |= _ONE << (np.uint64(position) & _WORD)
        share = np.float64(nth_word(block, key, drawn + 1) >> np.uint64(11)) * _UNIT
        drawn += 2
        if share < mask_prob:
            corrupted[position] = mask
            continue
        share = np.float64(nth_word(block, key, drawn) >> np.uint64(11)) * _UNIT
        drawn += 1
        if share >= keep_prob:
            corrupted[position] = multiply_high(nth_word(block, key, drawn), np.uint64(vocabulary_size))
            drawn += 1


@jit
def list_masked(sequence, bits, positions, ids):
    """The positions whose bits are set, ascending, with the ids there; clears the bits. Returns how many."""
    found = 0
    for b in range((len(sequence) + 63) >> 6):
        word = bits[b]
        bits[b] = np.uint64(0)
        while word != 0:
            position = 64 * b + np.int64(trailing_zeros(word))
            positions[found], ids[found] = position, sequence[position]
            found += 1
            word &= word - _ONE
    return found


def scratch_for(longest: int) -> tuple[NDArray, ...]:
    """What `mask_tokens` works in, for sequences of at most so many tokens."""
    return np.empty(longest + 1, np.uint16), np.zeros((longest >> 6) + 1, np.uint64), np.zeros(4, np.uint64)


@jit
def mask_tokens(key, sequences, counts, rule, scratch, out):
    """Masks at most counts[s] tokens of every sequence; the draws of each are keyed by key = (seed, purpose) and its
    own. rule: ids of [CLS], [SEP] and [MASK], size of the vocabulary, share of the covered tokens that become
    [MASK], share of the others that stay; scratch: `scratch_for` the longest sequence. Fills `out` (tokens, already a
    copy; positions; ids; masked_offsets); returns the masked rows used."""
    source, offsets, keys = sequences
    tokens, positions, ids, masked_offsets = out
    candidates, bits, block = scratch
    used = 0
    for s in range(len(keys)):
        sequence = source[offsets[s] : offsets[s + 1]]
        found = list_candidates(sequence, rule[0], rule[1], candidates)
        stream = (key[0], keys[s], key[1])
        k = min(counts[s], found)
        cover(stream, k, candidates[:found], rule, tokens[offsets[s] : offsets[s + 1]], block, bits)
        used += list_masked(sequence, bits, positions[used:], ids[used:])
        masked_offsets[s + 1] = used
    return used
