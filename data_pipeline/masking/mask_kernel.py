"""Choose which tokens of a sequence are masked and what replaces them, in a compiled loop for all kinds of masking.

    group_tokens         tokens, words or phrases (joined in phrases.py)
    ngram_end, span_end  how many of them are masked as one (spans.py)
    draw_replacement, replace   [MASK], itself, or a random token

The kinds differ in the first two, which a MaskRule selects; masker.py has their names.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_pipeline.jit import jit
from data_pipeline.masking.phrases import PhraseTable, join_words
from data_pipeline.masking.spans import ALONE, NGRAM, SPAN, ngram_end, span_end
from data_pipeline.rng import PHILOX_WORDS, mersenne_below, mersenne_unit, shuffle, start

TOKENS, WORDS, PHRASES = range(3)
_MASKED, _KEPT, _RANDOM = range(3)


class MaskRule(NamedTuple):
    """The parameters of masking for compiled code."""

    grouping: int  # TOKENS, WORDS or PHRASES: what a group is
    span_kind: int  # ALONE, NGRAM or SPAN: how many groups are masked as one
    across: bool  # a word whose head was truncated joins the word before the [SEP]
    continuation: NDArray[np.bool_]  # (vocabulary,) True for a piece that continues a word ('##...')
    cls: int
    sep: int
    mask: int
    mask_prob: float
    keep_prob: float  # of the tokens that do not become [MASK]
    together: bool  # one draw of the replacement for all tokens masked as one
    lengths: NDArray[np.float64]  # cumulative weights of 1, 2, ... groups
    units: PhraseTable


@jit
def group_tokens(sequence, specials, by_word, across, continuation, members, starts):
    """List the positions of `sequence` that do not hold one of the two `specials` in `members`; group g is
    members[starts[g]:starts[g + 1]], a token or, with `by_word`, a word. Return the number of groups.

    With `across` a continuation joins the previous word even across a [SEP]: if truncation removed the head of a word,
    its rest joins the word before, as in BERT's script."""
    groups, used = 0, 0
    for i in range(len(sequence)):
        token = sequence[i]
        if token == specials[0] or token == specials[1]:
            continue
        goes_on = by_word and groups > 0 and continuation[token]
        if not (goes_on and (across or members[used - 1] == i - 1)):
            starts[groups] = used
            groups += 1
        members[used] = i
        used += 1
    starts[groups] = used
    return groups


@jit
def list_candidates(span_kind, starts, groups, order):
    """Fill `order` with the groups that masking may begin at; return how many. A span begins at the word of a random
    token, so a word is listed once per token."""
    if span_kind != SPAN:
        for g in range(groups):
            order[g] = g
        return groups
    for g in range(groups):
        for m in range(starts[g], starts[g + 1]):
            order[m] = g
    return starts[groups]


@jit
def draw_replacement(stream, shares):
    """Draw the replacement of a masked token: shares = (of all that become [MASK], of the others that stay)."""
    if mersenne_unit(stream) < shares[0]:
        return _MASKED
    return _RANDOM if mersenne_unit(stream) >= shares[1] else _KEPT


@jit
def replace(stream, replacement, ids, corrupted, position):
    """Apply the drawn replacement to the token at `position`; ids = (id of [MASK], size of the vocabulary)."""
    if replacement == _MASKED:
        corrupted[position] = ids[0]
    elif replacement == _RANDOM:
        corrupted[position] = mersenne_below(stream, ids[1])


@jit
def replace_runs(stream, shares, together, ids, corrupted, covered):
    """Replace the masked tokens once all are known: spans that touch or overlap are one span."""
    replacement = _KEPT
    for i in range(len(covered)):
        if covered[i]:
            if not (together and i > 0 and covered[i - 1]):
                replacement = draw_replacement(stream, shares)
            replace(stream, replacement, ids, corrupted, i)


@jit
def mask_sequence(stream, k, rule, sequence, corrupted, covered, scratch):
    """Mask at most `k` tokens of `sequence`: write them into its copy `corrupted` and mark them in `covered` (all
    False before). `scratch`: three int64 rows, each longer than the sequence. Return the number of masked tokens.

    A stream of Python's draws (compiled/mersenne_twister.py) shuffles all candidates first, as the script does; a
    Philox stream draws them one by one, only as many as needed: the same distribution with fewer draws."""
    members, starts, order = scratch[0], scratch[1], scratch[2]
    # unpack what the loop needs of the rule: passing all its arrays on costs more than a draw
    shares, ids = (rule.mask_prob, rule.keep_prob), (rule.mask, len(rule.continuation))
    span_kind, together, lengths = rule.span_kind, rule.together, rule.lengths
    by_word, specials = rule.grouping != TOKENS, (rule.cls, rule.sep)
    groups = group_tokens(sequence, specials, by_word, rule.across, rule.continuation, members, starts)
    if rule.grouping == PHRASES:
        groups = join_words(sequence, rule.units, members, starts, groups)
    candidates = list_candidates(span_kind, starts, groups, order)
    lazily = len(stream) == PHILOX_WORDS
    if not lazily:
        shuffle(stream, order[:candidates])
    done, replacement = 0, _KEPT
    for c in range(candidates):
        if done >= k:
            break
        if lazily:
            other = c + mersenne_below(stream, candidates - c)
            order[c], order[other] = order[other], order[c]
        first, room = order[c], k - done
        if span_kind == ALONE:
            last = first if starts[first + 1] - starts[first] > room else first + 1
        elif span_kind == NGRAM:
            last = ngram_end(stream, lengths, room, groups, members, starts, covered, first)
        else:
            last = span_end(stream, lengths, room, groups, members, starts, covered, first)
        if together and span_kind != SPAN and first < last:
            replacement = draw_replacement(stream, shares)
        for m in range(starts[first], starts[last]):
            position = members[m]
            if covered[position]:
                continue
            covered[position] = True
            done += 1
            if span_kind != SPAN:
                if not together:
                    replacement = draw_replacement(stream, shares)
                replace(stream, replacement, ids, corrupted, position)
    if span_kind == SPAN:
        replace_runs(stream, shares, together, ids, corrupted, covered[: len(sequence)])
    return done


@jit
def emit_masked(sequence, covered, done, positions, ids):
    """List the `done` marked positions, ascending, with their original ids, and clear the marks."""
    found, i = 0, 0
    while found < done:
        positions[found], ids[found] = i, sequence[i]  # overwritten unless i is masked: a branch costs more
        found += covered[i]
        covered[i] = False
        i += 1


def scratch_for(longest: int) -> tuple[NDArray, ...]:
    """Allocate the scratch memory of `mask_all`, for sequences of at most `longest` tokens."""
    return (
        np.zeros(PHILOX_WORDS, np.uint64),
        np.empty((3, longest + 1), np.int64),
        np.zeros(longest, np.bool_),
    )


@jit
def mask_all(key, sequences, counts, rule, scratch, out):
    """Mask all sequences; the draws of each are keyed by key = (seed, purpose) and its own key. Fill `out` (tokens,
    already a copy; positions; ids; masked_offsets); return the number of masked rows. scratch: `scratch_for` the
    longest sequence."""
    source, offsets, keys = sequences
    seed, purpose = key
    tokens, positions, ids, masked_offsets = out
    stream, places, covered = scratch
    used = 0
    for s in range(len(keys)):
        start(stream, seed, keys[s], purpose)
        sequence = source[offsets[s] : offsets[s + 1]]
        corrupted = tokens[offsets[s] : offsets[s + 1]]
        done = mask_sequence(stream, counts[s], rule, sequence, corrupted, covered, places)
        emit_masked(sequence, covered, done, positions[used:], ids[used:])
        used += done
        masked_offsets[s + 1] = used
    return used
