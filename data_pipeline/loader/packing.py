"""Pack examples into micro-batches without padding, each within three caps.

A micro-batch holds whole examples, concatenated, longest first. The caps (tokens, examples, masked rows) let
compiled code pad to one shape; the token cap is the one that fills up.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_pipeline.io.npy import offsets_of
from data_pipeline.jit import jit, take_ragged
from data_pipeline.loader.bin_packing import Caps, assign
from data_pipeline.records import Examples

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
