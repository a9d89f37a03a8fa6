"""Pack examples into micro-batches under three caps: tokens, examples and masked rows."""

from math import ceil, sqrt
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import UserError
from data_pipeline.io.npy import offsets_of
from data_pipeline.jit import allocating

if TYPE_CHECKING:
    from data_pipeline.masking.masker import Corruption
    from data_pipeline.shards.index import Split


GAP = 20
"""A packed micro-batch leaves about 1/GAP of a sequence empty."""


class Caps(NamedTuple):
    """Maximum tokens, examples and masked rows of a micro-batch."""

    tokens: int
    examples: int
    masked: int
    """Masked rows."""


def caps_for(
    split: "Split",
    micro_batch: int,
    sequence_length: int,
    corruption: "Corruption | None" = None,
    most_tokens: int | None = None,
) -> Caps:
    """Compute the caps of a micro-batch of `micro_batch` x `sequence_length` tokens. `corruption`: what re-masks the
    split's examples; `most_tokens`: a lower token cap, as `fitting_tokens` returns it.

    Tokens: exactly that product. Examples: twice as many as would fill it at the split's mean length, plus 8. Masked
    rows: 4 % more than that many tokens have at the split's mean rate, plus the maximum of one example; packing
    spreads long and short examples evenly, so these two caps rarely bind. Both are rounded up to a multiple of 8,
    even if nothing is masked: a micro-batch of weight 0 has a spare row. If examples are re-masked, the masker's
    counts replace those of the shards. Raises UserError if an example would not fit."""
    tokens = min(micro_batch * sequence_length, most_tokens or micro_batch * sequence_length)
    if split.max_tokens > tokens:
        raise UserError(
            f"an example of {split.max_tokens} tokens does not fit a micro-batch of {tokens}",
            where="train.micro_batch",
            expected=f"data.sequence_length={split.max_tokens} or more, as the shards have",
            remedy="prepare shorter examples, or raise them",
        )
    filled = tokens * split.examples // max(split.tokens, 1)
    masked, most = split.masked, split.max_masked
    if corruption is not None:
        masked = ceil(split.examples * corruption.expected(split.tokens / max(split.examples, 1)))
        most = corruption.max_rows(split.max_tokens)
    rows = tokens * masked * 26 // (max(split.tokens, 1) * 25)
    return Caps(tokens, _round_up(2 * filled + 8), _round_up(max(rows + most, 1)))


def fitting_tokens(mean: float, variance: float, sequence_length: int, share: int, most: int) -> int:
    """Return the token cap, at most `most`, that leaves micro-batches of one shape full: whole micro-batches hold
    `share` examples, whose lengths have this mean and variance, plus twice the standard deviation of their sum. The
    mean must be exact: a share that is a little larger than the cap takes a whole micro-batch more.

    With a cap of `most`, a share of 7.5 micro-batches takes 8, so a sixteenth of them is empty. One share in forty
    is larger and takes one more micro-batch."""
    needed = share * mean + 2 * sqrt(share * variance)
    tokens = ceil(needed / ceil(needed / most)) + sequence_length // GAP
    return min(most, max(_round_up(tokens), sequence_length))


def assign(
    lengths: NDArray[np.int64], masked: NDArray[np.int64], caps: Caps
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (members, bins): micro-batch m holds examples members[bins[m]:bins[m + 1]], longest first.

    Each example, longest first, is assigned to the micro-batch with the fewest tokens, so that all end with an equal
    mix of lengths and short examples fill the gaps; the last micro-batch only takes what the others cannot hold. If
    first-fit decreasing needs fewer micro-batches, its result is used. Raises UserError for an example beyond the
    caps."""
    if not len(lengths):
        return np.zeros(0, np.int64), np.zeros(1, np.int64)
    if lengths.max() > caps.tokens or masked.max() > caps.masked:
        raise UserError(
            f"an example of {lengths.max()} tokens, {masked.max()} of them masked, does not fit a micro-batch",
            where="train.micro_batch",
            expected=f"at most {caps.tokens} and {caps.masked}",
        )
    order = np.argsort(-lengths, kind="stable")
    least = -(-int(lengths.sum()) // caps.tokens)
    chosen = _spread(lengths, masked, order, *caps, least)
    if chosen.max() >= least:
        other = _first_fit(lengths, masked, order, *caps)
        chosen = other if other.max() < chosen.max() else chosen
    counts = np.bincount(chosen)
    bins = offsets_of(counts[counts > 0])
    return order[np.argsort(chosen[order], kind="stable")], bins


def _round_up(value: int) -> int:
    return -(-value // 8) * 8


@allocating
def _spread(lengths, masked, order, most_tokens, most_examples, most_masked, least):
    """Return the micro-batch of each example. A binary heap keeps tokens * limit + micro-batch, the emptiest on top."""
    limit = len(lengths) + least + 1
    tokens, counts, rows = np.zeros(limit, np.int64), np.zeros(limit, np.int64), np.zeros(limit, np.int64)
    heap = np.arange(least)
    # the last one starts as full as it will stay, the others empty: then all fill at the same rate
    spare = least * most_tokens - lengths.sum()
    heap[least - 1] += spare * limit
    place = least - 1
    while place > 0 and heap[(place - 1) // 2] > heap[place]:
        heap[place], heap[(place - 1) // 2] = heap[(place - 1) // 2], heap[place]
        place = (place - 1) // 2
    extra = least - 1  # takes examples that fit in no other micro-batch
    chosen = np.empty(len(lengths), np.int64)
    for i in order:
        to = heap[0] % limit
        load = heap[0] // limit
        fits = (
            load + lengths[i] <= most_tokens
            and tokens[to] + lengths[i] <= most_tokens
            and counts[to] < most_examples
            and rows[to] + masked[i] <= most_masked
        )
        if fits:
            key = (load + lengths[i]) * limit + to
            place = 0
            while True:
                child = 2 * place + 1
                if child + 1 < least and heap[child + 1] < heap[child]:
                    child += 1
                if child >= least or heap[child] >= key:
                    break
                heap[place] = heap[child]
                place = child
            heap[place] = key
        else:
            to = extra
            while (
                tokens[to] + lengths[i] > most_tokens
                or counts[to] >= most_examples
                or rows[to] + masked[i] > most_masked
            ):
                to += 1
            extra = to
        tokens[to] += lengths[i]
        counts[to] += 1
        rows[to] += masked[i]
        chosen[i] = to
    return chosen


@allocating
def _first_fit(lengths, masked, order, most_tokens, most_examples, most_masked):
    """Assign by first-fit decreasing, one micro-batch at a time: of each length in turn, as many as still fit."""
    longest = lengths[order[0]]
    starts = np.zeros(longest + 2, np.int64)  # where the examples of each length begin in `order`
    for i in order:
        starts[lengths[i]] += 1
    place = 0
    for length in range(longest, -1, -1):
        count = starts[length]
        starts[length] = place
        place += count
    ends = np.empty(longest + 1, np.int64)
    for length in range(longest, 0, -1):
        ends[length] = starts[length - 1]
    chosen = np.empty(len(lengths), np.int64)
    done, number = 0, 0
    while done < len(order):
        room, count, rows, length = most_tokens, 0, 0, longest
        while length > 0 and count < most_examples:
            length = min(length, room)
            while length > 0 and starts[length] == ends[length]:
                length -= 1
            if length <= 0:
                break
            i = order[starts[length]]
            if rows + masked[i] > most_masked:
                length -= 1
                continue
            starts[length] += 1
            chosen[i] = number
            room -= length
            rows += masked[i]
            count += 1
            done += 1
        number += 1
    return chosen
