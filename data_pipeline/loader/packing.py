"""Pack examples into micro-batches without padding, each within three caps, and change the separators of pairs.

A micro-batch holds whole examples, concatenated, longest first. The caps (tokens, examples, masked rows) let
compiled code pad to one shape; the token cap is the one that fills up.
"""

from dataclasses import dataclass, replace
from math import ceil, sqrt
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import UserError
from data_pipeline.io.npy import offsets_of
from data_pipeline.jit import allocating, jit, take_ragged
from data_pipeline.records import Examples
from data_pipeline.settings import SEPARATORS, DataSettings
from data_pipeline.shards.index import Index

if TYPE_CHECKING:
    from data_pipeline.masking.masker import Corruption
    from data_pipeline.shards.index import Split


# Compute the caps, and assign examples to micro-batches.

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


# Pack the examples of a share.

_NUMBER_BITS = np.uint64(40)


class PackedMicroBatch(NamedTuple):
    """T tokens of E examples, R of them masked, as numpy arrays that need no copy to become tensors."""

    input_ids: NDArray[np.int64]  # (T,)
    segment_ids: NDArray[np.int64]  # (T,) 0 in the first segment, 1 in the second
    positions: NDArray[np.int64]  # (T,) within the example, but where data.separator_gap leaves one out
    cu_seqlens: NDArray[np.int32]  # (E + 1,) example e is rows cu_seqlens[e] .. cu_seqlens[e + 1] - 1
    lengths: NDArray[np.int32]  # (E,) descending
    masked_index: NDArray[np.int64]  # (R,) rows to predict, ascending
    masked_ids: NDArray[np.int64]  # (R,) the original ids there
    labels: NDArray[np.int64]  # (E,) of the pair; -1: none
    members: NDArray[np.int64]  # (E,) which examples of the share these are
    keys: NDArray[np.int64]  # (E,) keys of the examples' random draws (example_keys)
    streams: NDArray[np.int64]  # (E,) number of the stream that each example comes from

    @property
    def max_length(self) -> int:
        """Tokens of the longest example; 0 for an empty micro-batch."""
        return int(self.lengths[0]) if len(self.lengths) else 0


@dataclass(frozen=True, eq=False)
class StepShare:
    """What one rank reads in one step."""

    batch: int
    """Number of the global batch, from 0."""
    micro_batches: list[PackedMicroBatch]
    examples: int
    tokens: int
    masked: int
    """Masked rows."""
    pairs: int
    """Examples with a label."""
    epochs: NDArray[np.int64]
    """(examples,) epoch of each example, in the step's numbering."""
    numbers: NDArray[np.int64]
    """(examples,) number of each example in its split: with the epoch, the key of its random draws."""
    streams: NDArray[np.int64]
    """(examples,) number of the logical stream that each example comes from (loader/order.py)."""
    damage: tuple[str, ...] = ()
    """Warnings about missing or changed blocks that this share leaves out."""


def pack(
    examples: Examples,
    caps: Caps,
    *,
    batch: int,
    epochs: NDArray[np.int64],
    numbers: NDArray[np.int64],
    streams: NDArray[np.int64] | None = None,
) -> StepShare:
    """Pack the examples of a share into as few micro-batches as possible; the same examples give the same ones.
    Without `streams`, each example is its own stream, with its own number."""
    lengths, masked = examples.lengths, np.diff(examples.masked_offsets)
    members, bins = assign(lengths, masked, caps)
    streams = numbers if streams is None else streams
    keys = example_keys(epochs, numbers).view(np.int64)
    return StepShare(
        batch=batch,
        micro_batches=_packed(examples, members, bins, keys, streams),
        examples=len(examples),
        tokens=len(examples.tokens),
        masked=len(examples.masked_ids),
        pairs=int((examples.labels >= 0).sum()),
        epochs=epochs,
        numbers=numbers,
        streams=streams,
    )


def example_keys(epochs: NDArray[np.int64], numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Compute the keys of the examples' random draws: unique for 2**24 epochs of 2**40 examples."""
    return (epochs.astype(np.uint64) << _NUMBER_BITS) | numbers.astype(np.uint64)


def original_tokens(examples: Examples) -> NDArray[np.unsignedinteger]:
    """Return the tokens before masking, at the same offsets as examples.tokens: the input of a dynamic masker."""
    tokens = examples.tokens.copy()
    starts = np.repeat(examples.offsets[:-1], np.diff(examples.masked_offsets))
    tokens[starts + examples.masked_positions] = examples.masked_ids
    return tokens


def _packed(
    examples: Examples,
    members: NDArray[np.int64],
    bins: NDArray[np.int64],
    keys: NDArray[np.int64],
    streams: NDArray[np.int64],
) -> list[PackedMicroBatch]:
    lengths = examples.lengths[members]
    masked = np.diff(examples.masked_offsets)[members]
    starts = offsets_of(lengths)
    rows = offsets_of(masked)
    ids, segments, positions = np.empty((3, starts[-1]), np.int64)
    index, originals = np.empty((2, rows[-1]), np.int64)
    bases = np.repeat(starts[bins[:-1]], np.diff(bins))
    _fill(_columns(examples), members, starts, rows, bases, ids, segments, positions, index, originals)
    if examples.segment_ids is not None:
        segments = take_ragged(members, examples.offsets, examples.segment_ids)[0].astype(np.int64)
    if examples.positions is not None:
        positions = take_ragged(members, examples.offsets, examples.positions)[0].astype(np.int64)
    labels, short = examples.labels[members].astype(np.int64), lengths.astype(np.int32)
    keys, streams = keys[members], streams[members]
    result = []
    for first, last in zip(bins[:-1].tolist(), bins[1:].tolist(), strict=True):
        run, masked_run = slice(starts[first], starts[last]), slice(rows[first], rows[last])
        result.append(
            PackedMicroBatch(
                input_ids=ids[run],
                segment_ids=segments[run],
                positions=positions[run],
                cu_seqlens=(starts[first : last + 1] - starts[first]).astype(np.int32),
                lengths=short[first:last],
                masked_index=index[masked_run],
                masked_ids=originals[masked_run],
                labels=labels[first:last],
                members=members[first:last],
                keys=keys[first:last],
                streams=streams[first:last],
            )
        )
    return result


def _columns(examples: Examples) -> tuple[NDArray, ...]:
    """Return the columns that compiled code reads."""
    return (
        examples.tokens,
        examples.offsets,
        examples.first_lengths,
        examples.masked_positions,
        examples.masked_ids,
        examples.masked_offsets,
    )


@jit
def _fill(columns, members, starts, rows, bases, ids, segments, positions, index, originals):
    """Write example members[e] at rows starts[e].. and its masked rows, counted from bases[e], at rows[e]."""
    tokens, offsets, first_lengths, masked_positions, masked_ids, masked_offsets = columns
    for e in range(len(members)):
        i = members[e]
        source, to = offsets[i], starts[e]
        first = np.int64(first_lengths[i])
        for p in range(offsets[i + 1] - source):
            ids[to + p] = tokens[source + p]
            segments[to + p] = p >= first
            positions[to + p] = p
        source = masked_offsets[i]
        for m in range(masked_offsets[i + 1] - source):
            index[rows[e] + m] = to - bases[e] + np.int64(masked_positions[source + m])
            originals[rows[e] + m] = masked_ids[source + m]


# Leave out the [SEP] of pairs, or put periods in their places: what data.separators asks for. Unless they were prepared
# `absent`, the shards have [CLS] A [SEP] B [SEP], and their masks were drawn there, so that runs which differ in their
# separators alone read the same text with the same masks.

PERIOD = "."


@dataclass(frozen=True)
class Separators:
    """Which separators examples have. `kind`: one of SEPARATORS; `gap`: a second segment whose separator before it
    is left out keeps its positions; `period`: id of the period, for the kind that needs it."""

    kind: str
    gap: bool
    sep: int
    period: int = -1

    def __call__(self, examples: Examples) -> Examples:
        """Return the examples, which have [SEP] behind each segment, with these separators; no token or mask of
        their text changes. Raises UserError for examples without [SEP] there."""
        mid, end = separator_places(examples.offsets, examples.first_lengths)
        if (examples.tokens[np.concatenate((mid, end))] != self.sep).any():
            raise UserError("the shards have no [SEP] at the ends of segments", where="data.separators")
        if self.kind == "period":
            tokens = examples.tokens.copy()
            tokens[mid] = tokens[end] = self.period
            return replace(examples, tokens=tokens)
        left_out = {"none": (mid, end), "mid": (end,), "end": (mid,)}[self.kind]
        return without_tokens(examples, np.concatenate(left_out), keeps_positions=self.gap)


def without_tokens(examples: Examples, places: NDArray[np.int64], *, keeps_positions: bool) -> Examples:
    """Return the examples without the tokens at these places of all of them, none of which is to be predicted;
    `keeps_positions`: the others keep their positions."""
    kept = np.ones(len(examples.tokens), np.bool_)
    kept[places] = False
    before = np.concatenate(([0], np.cumsum(~kept)))  # tokens left out before each place
    starts = examples.offsets[:-1]
    owners = np.repeat(starts, np.diff(examples.masked_offsets))
    masked = owners + examples.masked_positions
    ends = starts + examples.first_lengths
    return replace(
        examples,
        tokens=examples.tokens[kept],
        offsets=offsets_of(np.diff(examples.offsets - before[examples.offsets])),
        first_lengths=(examples.first_lengths - (before[ends] - before[starts])).astype(np.uint16),
        masked_positions=(examples.masked_positions - (before[masked] - before[owners])).astype(np.uint16),
        segment_ids=None if examples.segment_ids is None else examples.segment_ids[kept],
        positions=examples.places[kept].astype(np.uint16) if keeps_positions else None,
    )


def separator_places(
    offsets: NDArray[np.int64], first_lengths: NDArray[np.integer]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the places of the separators of framed pairs: those between two segments, and those at the ends."""
    starts, ends = offsets[:-1], offsets[1:]
    firsts = starts + first_lengths.astype(np.int64)
    return firsts[firsts < ends] - 1, ends - 1


def separators_of(settings: DataSettings, index: Index, tokens: list[str]) -> Separators | None:
    """Return what gives examples of these shards the separators of the settings; None where they have them.
    `tokens`: the vocabulary. Raises UserError for shards without separators or a vocabulary without a period."""
    if settings.separators not in SEPARATORS[1:]:
        return None
    if index.settings.get("separators") is False:
        raise UserError(
            f"hold no [SEP] that data.separators={settings.separators} could change",
            where=index.folder,
            remedy="prepare them with data.separators=both",
        )
    if settings.separators == "period" and PERIOD not in tokens:
        raise UserError(
            f"has no {PERIOD!r}", where="the vocabulary", expected="one for data.separators=period"
        )
    period = tokens.index(PERIOD) if settings.separators == "period" else -1
    return Separators(settings.separators, settings.separator_gap, index.vocabulary.sep, period)
