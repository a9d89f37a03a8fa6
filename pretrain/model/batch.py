"""Build the tensors of a micro-batch from columns of packed examples.

Spare rows, which pad a micro-batch to a static shape or replace one that a rank lacks, carry no weight: a masked
row with id -1 and an example with label -1 add nothing to any sum, count or gradient.

Shape legend: T packed tokens, E examples, B of them with tokens, R masked rows.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.nn import functional as F

from data_pipeline.io.npy import offsets_of
from data_pipeline.records import NO_LABEL
from pretrain.model.attention import Packing

if TYPE_CHECKING:  # these import numba, which `maskmill plan` need not wait for
    from data_pipeline.loader.packing import Caps, PackedMicroBatch
    from data_pipeline.records import Examples

IGNORED = -1
"""Value of `masked_ids` in a spare row: no prediction is asked for."""

SPARE = -1
"""Value of `streams` in a spare example."""


class Shape(NamedTuple):
    """The static shape that every micro-batch of a compiled run is padded to, but for its `borders`."""

    tokens: int
    examples: int
    masked: int
    longest: int
    """At least the longest example."""

    @staticmethod
    def of(caps: "Caps", longest: int) -> "Shape":
        """Compute the shape for micro-batches within `caps`, with extra examples for spare tokens."""
        return Shape(caps.tokens, caps.examples + -(-caps.tokens // longest), caps.masked, longest)


class Predicted(NamedTuple):
    """The targets of the heads: rows of the hidden states and their labels."""

    masked_index: Tensor  # (R,) int64
    masked_ids: Tensor  # (R,) int64; -1: a spare row
    masked_inputs: Tensor  # (R,) int64: the ids that the encoder sees there
    cls_index: Tensor  # (E,) int64
    labels: Tensor  # (E,) int64; -1: none


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """Packed examples: example i holds tokens cu_seqlens[i]..cu_seqlens[i + 1] - 1 of the run."""

    input_ids: Tensor  # (T,) int64, as the encoder sees them: masked
    segment_ids: Tensor  # (T,) int64: 0 up to the first [SEP], 1 after it
    positions: Tensor  # (T,) int64, within the token's example
    cu_seqlens: Tensor  # (E + 1,) int32
    borders: Tensor  # (B + 1,) int32: cu_seqlens without the spare examples at its end that have no token; a field,
    # since a compiled model that derived it from `lengths` would be compiled for these lengths alone
    masked_index: Tensor  # (R,) int64: rows of the run to predict
    masked_ids: Tensor  # (R,) int64: the original ids there; -1: a spare row
    labels: Tensor  # (E,) int64: 1 random next, 0 true next, -1 none
    keys: Tensor  # (E,) int64: epoch << 40 | number of the example in its split; 0 in a spare one
    streams: Tensor  # (E,) int64: number of the logical stream; -1: a spare example
    lengths: tuple[int, ...]  # tokens of each example, on the host, so that reading them needs no device sync
    max_length: int  # at least the longest example
    packing: Packing = field(
        init=False, repr=False
    )  # what attention needs; keeps the tile plan for all layers

    def __post_init__(self) -> None:
        object.__setattr__(self, "packing", Packing(self.borders, self.lengths, self.max_length))

    @property
    def cls_index(self) -> Tensor:
        """(E,) int64: the row of each example's [CLS]; of a spare example without tokens, some row."""
        return self.cu_seqlens[:-1].long().clamp(max=self.input_ids.shape[0] - 1)

    def predicted(self, pairs: bool = True) -> tuple[Tensor, Predicted]:
        """Return the rows of the run that heads read, masked ones first, then, if `pairs`, those of [CLS]; and
        their indices within these rows."""
        masked, examples = self.masked_index.shape[0], self.labels.shape[0]
        rows = torch.cat((self.masked_index, self.cls_index)) if pairs else self.masked_index
        place = torch.arange(masked + examples, device=rows.device)
        inputs = self.input_ids.index_select(0, self.masked_index)
        return rows, Predicted(place[:masked], self.masked_ids, inputs, place[masked:], self.labels)

    @property
    def example_index(self) -> Tensor:
        """(T,) int64: the example of each row. No value is read from the device."""
        rows_T = torch.arange(self.tokens, device=self.input_ids.device)
        return torch.bucketize(rows_T, self.cu_seqlens[1:], right=True)

    def next_tokens(self) -> Tensor:
        """Find what each row predicts from left to right: (T,) int64, the id after it in its example; -1 (IGNORED) for
        an example's last token and in spare examples. No value is read from the device."""
        examples_T = self.example_index
        last_T = F.pad(examples_T[1:] != examples_T[:-1], (0, 1), value=True)
        spare_T = self.streams.index_select(0, examples_T) == SPARE
        return self.input_ids.roll(-1).masked_fill(last_T | spare_T, IGNORED)

    def real_tokens(self) -> Tensor:
        """Mark the rows of real, not spare, examples: (T,) bool."""
        return self.streams.index_select(0, self.example_index) != SPARE

    def filled(self, ids_R: Tensor) -> "MicroBatch":
        """Put `ids_R` (R,) into the masked rows: with `masked_ids`, the text as it was. Spare rows do not change."""
        rows_R = self.masked_index.masked_fill(self.masked_ids == IGNORED, self.tokens)
        result = replace(self, input_ids=F.pad(self.input_ids, (0, 1)).scatter(0, rows_R, ids_R)[:-1])
        object.__setattr__(result, "packing", self.packing)  # with the tile plan that it keeps
        return result

    @property
    def tokens(self) -> int:
        """Tokens of the run, on the host."""
        return self.input_ids.shape[0]

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "MicroBatch":
        """Move the micro-batch's tensors to `device`."""
        return self._with_tensors(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "MicroBatch":
        """Copy the micro-batch to page-locked memory, so that copies to a GPU overlap with computation."""
        return self._with_tensors(lambda tensor: tensor.pin_memory())

    def _with_tensors(self, copy: Callable[[Tensor], Tensor]) -> "MicroBatch":
        """Replace every tensor by its copy; `borders` is a part of `cu_seqlens` and has none of its own."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        copies: dict[str, Any] = {
            name: copy(x) for name, x in values.items() if isinstance(x, Tensor) and name != "borders"
        }
        copies["borders"] = copies["cu_seqlens"][: len(self.borders)]
        return replace(self, **copies)

    def padded(self, shape: Shape) -> "MicroBatch":
        """Pad the micro-batch with spare rows up to `shape`; they add nothing to any sum, count or gradient.

        Spare tokens form separate unlabelled examples, so that every token has something to attend to; spare masked
        rows have no original id. They are as many as it takes at the mean length of the real ones, or as there is room
        for, so that attention has few to go through: the flash kernel's deterministic backward pass divides a GPU among
        all it is given, and those without a token would leave their part idle."""
        tokens, free = shape.tokens - self.tokens, shape.examples - len(self.lengths)
        spare_masked = shape.masked - len(self.masked_ids)
        if min(tokens, free, spare_masked) < 0:
            raise ValueError(f"a micro-batch is larger than its shape {shape}")
        spare = _even(tokens, min(free, -(-tokens * len(self.lengths) // self.tokens)))
        lengths = (*self.lengths, *spare, *[0] * (free - len(spare)))
        cu_seqlens = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
        positions = torch.from_numpy(_places(np.asarray(spare, np.int64)))
        return MicroBatch(
            input_ids=F.pad(self.input_ids, (0, tokens)),
            segment_ids=F.pad(self.segment_ids, (0, tokens)),
            positions=torch.cat((self.positions, positions)),
            cu_seqlens=cu_seqlens,
            borders=cu_seqlens[: len(self.lengths) + len(spare) + 1],
            masked_index=F.pad(self.masked_index, (0, spare_masked)),
            masked_ids=F.pad(self.masked_ids, (0, spare_masked), value=IGNORED),
            labels=F.pad(self.labels, (0, free), value=NO_LABEL),
            keys=F.pad(self.keys, (0, free)),
            streams=F.pad(self.streams, (0, free), value=SPARE),
            lengths=lengths,
            max_length=shape.longest,
        )

    @staticmethod
    def from_arrays(
        tokens: ArrayLike,
        lengths: ArrayLike,
        first_lengths: ArrayLike,
        masked_positions: ArrayLike,
        masked_ids: ArrayLike,
        masked_counts: ArrayLike,
        labels: ArrayLike,
        max_length: int | None = None,
        keys: ArrayLike | None = None,
        streams: ArrayLike | None = None,
        segment_ids: ArrayLike | None = None,
        positions: ArrayLike | None = None,
    ) -> "MicroBatch":
        """Build a micro-batch on the CPU from NumPy columns of any integer dtype.

        `tokens` (T,) holds the examples one after the other, `lengths` (E,) of them each, the first `first_lengths`
        (E,) of segment 0. `masked_positions` (R,) count within the example, `masked_counts` (E,) of them
        each, with the original `masked_ids` (R,). `max_length` states a bound that stays the same over a run,
        for static shapes. `keys` and `streams` (E,) default to the examples' places here, `segment_ids` (T,) to
        0 up to `first_lengths` and 1 after them, `positions` (T,) to the tokens' places in their examples."""
        length_of = np.asarray(lengths, np.int64)
        offsets = offsets_of(length_of)
        places = _places(length_of)
        cu_seqlens = torch.from_numpy(offsets.astype(np.int32))
        if segment_ids is None:
            segment_ids = places >= np.repeat(np.asarray(first_lengths, np.int64), length_of)
        masked_starts = np.repeat(offsets[:-1], np.asarray(masked_counts, np.int64))
        return MicroBatch(
            input_ids=_column(tokens),
            segment_ids=_column(segment_ids),
            positions=_column(places if positions is None else positions),
            cu_seqlens=cu_seqlens,
            borders=cu_seqlens,
            masked_index=_column(masked_starts + np.asarray(masked_positions, np.int64)),
            masked_ids=_column(masked_ids),
            labels=_column(labels),
            keys=_column(np.arange(len(length_of)) if keys is None else keys),
            streams=_column(np.arange(len(length_of)) if streams is None else streams),
            lengths=tuple(length_of.tolist()),
            max_length=max_length or int(length_of.max()),
        )

    @staticmethod
    def from_packed(packed: "PackedMicroBatch") -> "MicroBatch":
        """Wrap what the loader packed, without a copy."""
        cu_seqlens = torch.from_numpy(packed.cu_seqlens)
        return MicroBatch(
            input_ids=torch.from_numpy(packed.input_ids),
            segment_ids=torch.from_numpy(packed.segment_ids),
            positions=torch.from_numpy(packed.positions),
            cu_seqlens=cu_seqlens,
            borders=cu_seqlens,
            masked_index=torch.from_numpy(packed.masked_index),
            masked_ids=torch.from_numpy(packed.masked_ids),
            labels=torch.from_numpy(packed.labels),
            keys=torch.from_numpy(packed.keys),
            streams=torch.from_numpy(packed.streams),
            lengths=tuple(packed.lengths.tolist()),
            max_length=packed.max_length,
        )

    @staticmethod
    def from_examples(examples: "Examples", max_length: int | None = None) -> "MicroBatch":
        """Build one micro-batch of all `examples` (columns as in shards)."""
        return MicroBatch.from_arrays(
            examples.tokens,
            examples.lengths,
            examples.first_lengths,
            examples.masked_positions,
            examples.masked_ids,
            np.diff(examples.masked_offsets),
            examples.labels,
            max_length,
            segment_ids=examples.segment_ids,
            positions=examples.positions,
        )

    @staticmethod
    def from_lists(
        sequences: Sequence[Sequence[int]],
        first_lengths: Sequence[int] | None = None,
        masked: Sequence[dict[int, int]] | None = None,
        labels: Sequence[int] | None = None,
    ) -> "MicroBatch":
        """Build a micro-batch from token id lists. `first_lengths` defaults to all of each; `masked` maps, for each
        example, positions to original ids; `labels` defaults to none."""
        lengths = [len(s) for s in sequences]
        targets = masked or [{} for _ in sequences]
        return MicroBatch.from_arrays(
            tokens=_joined(sequences),
            lengths=lengths,
            first_lengths=first_lengths or lengths,
            masked_positions=_joined(t.keys() for t in targets),
            masked_ids=_joined(t.values() for t in targets),
            masked_counts=[len(t) for t in targets],
            labels=labels or [NO_LABEL] * len(lengths),
        )

    @staticmethod
    def empty(cls: int, sep: int, max_length: int | None = None) -> "MicroBatch":
        """Build a micro-batch of weight 0: one [CLS] [SEP] without a label and one spare masked row.

        Its forward and backward pass go through every parameter, with zero gradients, so that a rank which
        has run out of examples takes part in the collectives of ZeRO-2 and ZeRO-3."""
        return MicroBatch.from_arrays(
            tokens=[cls, sep],
            lengths=[2],
            first_lengths=[2],
            masked_positions=[1],
            masked_ids=[IGNORED],
            masked_counts=[1],
            labels=[NO_LABEL],
            max_length=max_length,
            streams=[SPARE],
        )


def _even(tokens: int, examples: int) -> list[int]:
    """Divide tokens among so many examples, as evenly as it goes."""
    return [tokens // examples + (i < tokens % examples) for i in range(examples)] if examples else []


def _places(length_of: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count each token's place in its example, of examples of these lengths one after the other."""
    offsets = offsets_of(length_of)
    return np.arange(offsets[-1]) - np.repeat(offsets[:-1], length_of)


def _column(values: ArrayLike) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64))


def _joined(parts: Iterable[Iterable[int]]) -> NDArray[np.int64]:
    return np.array([x for part in parts for x in part], np.int64)
