"""Draw prediction targets and factorization orders for permutation language modelling.

Source: Yang et al. 2019, XLNet, sections 2.2 and 2.3; its data_utils.py.

    select   spans of pieces, spread over a part of an example, whose tokens are to be predicted
    order    a permutation of each window of a part: token i is predicted from the tokens before it in this order

A part is the example, or with `reuse` its first `reuse` tokens and the rest: targets and orders are drawn for each
separately, and the second sees all of the first. [SEP] and [CLS] take part in the order but are never targets. All
tokens that are neither targets nor special are context, visible to everything in their part and after it.

The draws of an example depend only on (seed, epoch, number in its split), as a StepShare has them: equal at every
world size and after every resume. The training step of the objective `xlnet` is to call `draw_orders` with the
originals of its micro-batches and to compare the two columns: query i does not see key j where queries[i] <=
keys[j].
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_pipeline.compiled.jit import allocating, jit
from data_pipeline.compiled.mersenne_twister import PHILOX_WORDS, below
from data_pipeline.compiled.philox import FACTORIZATION, start
from data_pipeline.compiled.ragged import read_only
from data_pipeline.loader.packing import example_keys
from data_pipeline.masking.spans import draw_length, harmonic


class OrderRule(NamedTuple):
    """How targets and orders are drawn; the defaults are XLNet's."""

    continuation: NDArray[
        np.bool_
    ]  # (vocabulary,) True for a piece that continues a word: no span begins with one
    cls: int
    sep: int
    share: int = 6  # one token in `share` is a target (K in the paper)
    longest: int = 5  # pieces of a span; n has probability proportional to 1/n
    context: int = 6  # tokens around a span for each of its pieces
    reuse: int = 0  # tokens of the first part; 0: an example is one part
    window: int = 0  # tokens permuted together; windows keep their order; 0: all of a part


class Orders(NamedTuple):
    """Draws for E examples of T tokens in all, separated by `offsets`."""

    targets: NDArray[np.bool_]  # (T,) tokens to predict
    queries: NDArray[np.int32]  # (T,) row i of the attention does not see
    keys: NDArray[np.int32]  # (T,) column j of its example where queries[i] <= keys[j]


def draw_orders(
    tokens: NDArray[np.unsignedinteger],
    offsets: NDArray[np.int64],
    epochs: NDArray[np.int64],
    numbers: NDArray[np.int64],
    rule: OrderRule,
    seed: int,
) -> Orders:
    """Draw targets and orders of the examples tokens[offsets[e]:offsets[e + 1]], of these epochs and numbers."""
    total = len(tokens)
    out = Orders(np.zeros(total, np.bool_), np.empty(total, np.int32), np.empty(total, np.int32))
    key = (np.uint64(seed % 2**64), np.uint64(FACTORIZATION))
    examples = (read_only(tokens), read_only(offsets), example_keys(epochs, numbers))
    _draw_all(key, examples, rule, harmonic(rule.longest), out)
    return out


@jit
def goal(first, last, share):
    """Return the number of targets among tokens first..last-1 of an example, at least one. Those of two parts add up
    to the whole's: for 512 tokens and a share of 6, 42 and 43 are 85, as in XLNet's script (there 43 and 42)."""
    return max(1, last // share - first // share)


@jit
def select(stream, sequence, rule, lengths, wanted, targets):
    """Mark `wanted` tokens of `sequence` in `targets`, fewer if fewer tokens are not special.

    As `_sample_mask` of XLNet's script: spans of n pieces that start at a word, between them context * n tokens that
    are left alone, divided at random into those before and those after; then single tokens at random until there are
    enough. A span that would reach a special token ends before it (the script drops the token later)."""
    size, place, done = len(sequence), 0, 0
    while place < size and done < wanted:
        n = min(draw_length(stream, lengths, len(lengths)), wanted - done)
        around = n * rule.context
        before = below(stream, around) if around > 0 else 0
        first = place + before
        while first < size and (rule.continuation[sequence[first]] or _special(sequence[first], rule)):
            first += 1
        last = first
        while last < size and last < first + n and not _special(sequence[last], rule):
            targets[last] = True
            last += 1
        done += last - first
        place = last + around - before
    free = 0
    for i in range(size):
        free += not (targets[i] or _special(sequence[i], rule))
    while done < wanted and free > 0:
        i = below(stream, size)
        if not (targets[i] or _special(sequence[i], rule)):
            targets[i] = True
            done += 1
            free -= 1


@jit
def _special(token, rule):
    return token == rule.cls or token == rule.sep


@jit
def rank_tokens(stream, window, ranks):
    """Write the place of every token in the factorization order: a permutation of each window of `window` tokens,
    windows in their order. (XLNet's script uses one permutation for all windows; here each has its own.)"""
    for first in range(0, len(ranks), window):
        last = min(first + window, len(ranks))
        for i in range(first, last):
            other = first + below(stream, i - first + 1)
            ranks[i] = ranks[other]
            ranks[other] = i


@jit
def write_visibility(ranks, targets, special, base, queries, keys):
    """Write the two columns that describe a part's attention, from ranks 0.. (XLNet's `_local_perm`).

    A key that is neither target nor special is below every query. A target's query is its own rank, so that it does
    not see itself; every other query is its rank plus one. `base` places a part after the previous one, all of which
    it sees."""
    for i in range(len(ranks)):
        ordered = targets[i] or special[i]
        rank = ranks[i] if ordered else -1
        keys[i] = base + rank
        queries[i] = base + (rank if targets[i] else rank + 1)


@allocating
def _draw_all(key, examples, rule, lengths, out):
    tokens, offsets, example = examples
    targets, queries, keys = out
    seed, purpose = key
    stream = np.zeros(PHILOX_WORDS, np.uint64)
    for e in range(len(example)):
        start(stream, seed, example[e], purpose)
        low, high = offsets[e], offsets[e + 1]
        base = 0
        while low < high:
            middle = min(high, low + rule.reuse) if rule.reuse > 0 and low == offsets[e] else high
            sequence = tokens[low:middle]
            size = len(sequence)
            wanted = goal(low - offsets[e], middle - offsets[e], rule.share)
            select(stream, sequence, rule, lengths, wanted, targets[low:middle])
            special = np.zeros(size, np.bool_)
            for i in range(size):
                special[i] = _special(sequence[i], rule)
            ranks = np.empty(size, np.int64)
            rank_tokens(stream, rule.window if rule.window > 0 else size, ranks)
            write_visibility(ranks, targets[low:middle], special, base, queries[low:middle], keys[low:middle])
            base += size + 1  # a key of the next part is no lower than the highest query of this one
            low = middle
