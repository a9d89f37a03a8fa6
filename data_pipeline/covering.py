"""A sequence and a rule in; which of its tokens are covered, and what stands in their place, out: the compiled walk
of all kinds of masking.

    group_candidates     tokens, words or units (units.py joins these)
    extent_end           how many of them are covered as one (spans.py)
    draw_fate, replace   [MASK], itself, or a random token

The kinds differ in the first two; they are told apart by a MaskRule, and masking.py has their names.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_pipeline.draws import jit, start
from data_pipeline.spans import NGRAM, SPAN, ngram_end, span_end
from data_pipeline.twister import PHILOX_WORDS, below, shuffle, unit
from data_pipeline.units import UnitTable, join_words

TOKENS, WORDS, UNITS = range(3)
_MASKED, _KEPT, _RANDOM = range(3)


class MaskRule(NamedTuple):
    """What compiled code needs to know to mask a sequence."""

    grouping: int  # TOKENS, WORDS or UNITS: what a group is
    extent: int  # ALONE, NGRAM or SPAN: how many groups are covered as one
    across: bool  # a word whose head truncation cut off goes with the word before the [SEP]
    continuation: NDArray[np.bool_]  # (vocabulary,) True for a piece that goes on a word ('##...')
    cls: int
    sep: int
    mask: int
    mask_share: float
    keep_share: float  # of the tokens that do not become [MASK]
    together: bool  # one draw decides what becomes of all that is covered as one
    lengths: NDArray[np.float64]  # cumulative weights of 1, 2, ... groups
    units: UnitTable


@jit
def group_candidates(sequence, rule, members, starts):
    """Lists the maskable positions of `sequence` in `members`; group g is members[starts[g]:starts[g + 1]].
    Returns the number of groups: tokens, words or units.

    With `across` a continuation joins the last group that there is, even across a [SEP]: where truncation cut the
    head off a word, its rest goes with the word before, as in BERT's script."""
    groups, used = 0, 0
    for i in range(len(sequence)):
        token = sequence[i]
        if token == rule.cls or token == rule.sep:
            continue
        goes_on = rule.grouping != TOKENS and groups > 0 and rule.continuation[token]
        if not (goes_on and (rule.across or members[used - 1] == i - 1)):
            starts[groups] = used
            groups += 1
        members[used] = i
        used += 1
    starts[groups] = used
    if rule.grouping == UNITS:
        return join_words(sequence, rule.units, members, starts, groups)
    return groups


@jit
def list_candidates(rule, starts, groups, order):
    """Fills `order` with the groups that masking may begin at; returns how many. A span begins at a random token's
    word, so that a word is listed once for each of its tokens."""
    if rule.extent != SPAN:
        for g in range(groups):
            order[g] = g
        return groups
    for g in range(groups):
        for m in range(starts[g], starts[g + 1]):
            order[m] = g
    return starts[groups]


@jit
def extent_end(stream, rule, room, groups, members, starts, covered, first):
    """The group behind those that are covered as one from group `first` on; `first` itself where nothing is, since
    not more than `room` tokens may be."""
    if rule.extent == NGRAM:
        return ngram_end(stream, rule.lengths, room, groups, members, starts, covered, first)
    if rule.extent == SPAN:
        return span_end(stream, rule.lengths, room, groups, members, starts, covered, first)
    return first if starts[first + 1] - starts[first] > room else first + 1


@jit
def draw_fate(stream, rule):
    """What becomes of a covered token."""
    if unit(stream) < rule.mask_share:
        return _MASKED
    return _RANDOM if unit(stream) >= rule.keep_share else _KEPT


@jit
def replace(stream, rule, fate, corrupted, position):
    """Lets its fate befall the token at `position`."""
    if fate == _MASKED:
        corrupted[position] = rule.mask
    elif fate == _RANDOM:
        corrupted[position] = below(stream, len(rule.continuation))


@jit
def replace_runs(stream, rule, corrupted, covered):
    """Replaces the covered tokens once all are known: spans that touch or overlap are one span."""
    fate = _KEPT
    for i in range(len(covered)):
        if covered[i]:
            if not (rule.together and i > 0 and covered[i - 1]):
                fate = draw_fate(stream, rule)
            replace(stream, rule, fate, corrupted, i)


@jit
def mask_sequence(stream, k, rule, sequence, corrupted, covered, scratch):
    """Writes the corrupted tokens of `sequence` into its copy `corrupted` and marks them in `covered` (all
    False before). `scratch`: three int64 rows, each longer than the sequence. Returns how many it covered.

    A stream of Python's draws (twister.py) shuffles all candidates first, as the script does; a Philox
    stream draws them one by one, no more than it needs: the same distribution for fewer draws."""
    members, starts, order = scratch[0], scratch[1], scratch[2]
    groups = group_candidates(sequence, rule, members, starts)
    candidates = list_candidates(rule, starts, groups, order)
    lazily = len(stream) == PHILOX_WORDS
    if not lazily:
        shuffle(stream, order[:candidates])
    done, fate = 0, _KEPT
    for c in range(candidates):
        if done >= k:
            break
        if lazily:
            other = c + below(stream, candidates - c)
            order[c], order[other] = order[other], order[c]
        first = order[c]
        last = extent_end(stream, rule, k - done, groups, members, starts, covered, first)
        if rule.together and rule.extent != SPAN and first < last:
            fate = draw_fate(stream, rule)
        for m in range(starts[first], starts[last]):
            position = members[m]
            if covered[position]:
                continue
            covered[position] = True
            done += 1
            if rule.extent != SPAN:
                if not rule.together:
                    fate = draw_fate(stream, rule)
                replace(stream, rule, fate, corrupted, position)
    if rule.extent == SPAN:
        replace_runs(stream, rule, corrupted, covered[: len(sequence)])
    return done


@jit
def emit_covered(sequence, covered, done, positions, ids):
    """Lists the `done` marked positions, ascending, with their original ids, and clears the marks."""
    found, i = 0, 0
    while found < done:
        if covered[i]:
            positions[found], ids[found] = i, sequence[i]
            covered[i] = False
            found += 1
        i += 1


@jit
def mask_all(key, sequences, counts, rule, out):
    """Masks all sequences; the draws of each are keyed by key = (seed, purpose) and its own. Fills `out` (tokens,
    already a copy; positions; ids; masked_offsets); returns the masked rows used."""
    source, offsets, keys = sequences
    seed, purpose = key
    tokens, positions, ids, masked_offsets = out
    longest = 0
    for s in range(len(keys)):
        longest = max(longest, offsets[s + 1] - offsets[s])
    stream = np.zeros(PHILOX_WORDS, np.uint64)
    scratch = np.empty((3, longest + 1), np.int64)
    covered = np.zeros(longest, np.bool_)
    used = 0
    for s in range(len(keys)):
        start(stream, seed, keys[s], purpose)
        sequence = source[offsets[s] : offsets[s + 1]]
        corrupted = tokens[offsets[s] : offsets[s + 1]]
        done = mask_sequence(stream, counts[s], rule, sequence, corrupted, covered, scratch)
        emit_covered(sequence, covered, done, positions[used:], ids[used:])
        used += done
        masked_offsets[s + 1] = used
    return used
