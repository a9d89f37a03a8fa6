"""Mask single tokens, the most common kind of masking, with the draws of the general loop in a third of its time.

A group is a single token here, so a candidate is a position, the masked positions fit into a bit set, and listing them
in order is a scan over its bits.
"""

import numpy as np
from numpy.typing import NDArray

from data_pipeline.jit import jit, multiply_high, trailing_zeros
from data_pipeline.rng import philox

_ONE, _WORD = np.uint64(1), np.uint64(63)
_UNIT = 1.0 / 9007199254740992.0  # 53 random bits to [0, 1), as draws.unit


@jit
def nth_word(block, key, number):
    """Return word `number` of the stream key = (seed, key, purpose); `block` holds the four words around the previous
    one."""
    if number & 3 == 0:
        philox(key[0], key[1], np.uint64(number >> 2), key[2], block)
    return block[number & 3]


@jit
def list_candidates(sequence, cls, sep, members):
    """List the positions of all tokens except [CLS] and [SEP] in `members`; return how many."""
    found = 0
    for i in range(len(sequence)):
        members[found] = i
        found += (sequence[i] != cls) & (sequence[i] != sep)
    return found


@jit
def cover(key, k, candidates, rule, corrupted, block, bits):
    """Draw k of the candidates one by one, replace each in `corrupted` and set its bit."""
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
    """List the positions whose bits are set, ascending, with the ids there; clear the bits and return how many."""
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
    """Allocate the scratch memory of `mask_tokens`, for sequences of at most `longest` tokens."""
    return np.empty(longest + 1, np.uint16), np.zeros((longest >> 6) + 1, np.uint64), np.zeros(4, np.uint64)


@jit
def mask_tokens(key, sequences, counts, rule, scratch, out):
    """Mask at most counts[s] tokens of every sequence s; the draws of each are keyed by key = (seed, purpose) and its
    own key. rule: ids of [CLS], [SEP] and [MASK], size of the vocabulary, share of the masked tokens that become
    [MASK], share of the others that stay; scratch: `scratch_for` the longest sequence. Fill `out` (tokens, already a
    copy; positions; ids; masked_offsets); return the number of masked rows."""
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
