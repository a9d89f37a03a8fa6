"""Read and write the values of named pieces of DeepSpeed's flat tensors.

The map is used for sums over parameters (LAMB's norms) and for saving and loading by name. flat_tensors.py finds the
pieces.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from pretrain.optim.flat_layout import MOMENTS, Fragment, Layout

KINDS = ("master", *MOMENTS)

Reader = Callable[[str, str, int, int], Tensor | None]
"""read(name, kind, start, length): elements start..start+length-1 of the flattened tensor; None: keep what is there."""


@dataclass(frozen=True)
class Flat:
    """One fp32 tensor that the optimizer updates on this rank, and its contents."""

    tensor: Tensor
    layout: Layout
    moments: tuple[str, ...] = MOMENTS
    """The moments that the optimizer keeps of it."""


@dataclass(frozen=True)
class Fixed:
    """A piece of a frozen parameter or buffer on this rank, 1-D, in the module's own precision."""

    name: str
    start: int
    values: Tensor
    split: bool


@dataclass(frozen=True)
class PartitionMap:
    """Which elements of which named tensors this rank holds, and where."""

    flats: tuple[Flat, ...]
    fixed: tuple[Fixed, ...]
    shapes: dict[str, list[int]]
    """Full shape of every parameter (a tied one once) and persistent buffer, by name."""
    rank: int
    size: int
    optimizer: Optimizer
    refresh: Callable[[], None]
    """Updates the module's own copies from the masters. Collective."""

    layouts: dict[int, Layout]
    """Layout of each flat tensor, by its id."""

    def layout_of(self, tensor: Tensor) -> Layout:
        """Return the layout of a tensor that the optimizer updates."""
        return self.layouts[id(tensor)]

    def fragments(self, kinds: Iterable[str] = KINDS) -> Iterator[Fragment]:
        """Return this rank's pieces of masters, moments, frozen parameters and buffers, as views; those among `kinds`,
        where frozen parameters and buffers count as masters.

        Over all ranks, every element of every tensor occurs exactly once. Replicated tensors (stage 0) are divided
        evenly by elements; frozen parameters and buffers are rank 0's unless split.
        """
        for kind in kinds:
            for name, start, values in self._trainable(kind):
                yield Fragment(kind, name, start, values)
        for piece in self.fixed if "master" in kinds else ():
            if (piece.split or self.rank == 0) and piece.values.numel():
                yield Fragment("master", piece.name, piece.start, piece.values)

    def _trainable(self, kind: str) -> Iterator[tuple[str, int, Tensor]]:
        replicated = sum(flat.layout.numel for flat in self.flats if not flat.layout.split)
        low, high = (replicated * (self.rank + i) // self.size for i in (0, 1))
        seen = 0
        for flat in self.flats:
            values = self._values(flat, kind) if kind in ("master", *flat.moments) else None
            for segment in flat.layout.segments:
                first, last = segment.start, segment.start + segment.length
                if not flat.layout.split:
                    first, last = max(first, low - seen), min(last, high - seen)
                if values is not None and first < last:
                    offset = segment.offset + first - segment.start
                    yield flat.layout.names[segment.parameter], offset, values[first:last]
            seen += 0 if flat.layout.split else flat.layout.numel

    @torch.no_grad()
    def load(self, read: Reader, updates: int, kinds: Iterable[str] = KINDS) -> None:
        """Fill this rank's pieces of `kinds` from `read`, then update the module. Collective.

        `updates`: number of updates that the moments have seen, for the bias correction. Moments that are not
        among `kinds` become zero. Padding becomes zero.
        """
        for flat in self.flats:
            for kind in ("master", *flat.moments):
                self._load_flat(flat, kind, read if kind in kinds else None)
            self._set_updates(flat, updates)
        for piece in self.fixed if "master" in kinds else ():
            if piece.values.numel():
                _fill(piece.values, read(piece.name, "master", piece.start, piece.values.numel()))
        self.refresh()

    def _load_flat(self, flat: Flat, kind: str, read: Reader | None) -> None:
        values = self._values(flat, kind)
        for start, length in flat.layout.padding():
            values[start : start + length].zero_()
        for segment in flat.layout.segments:
            piece = values[segment.start : segment.start + segment.length]
            if read is not None:
                name = flat.layout.names[segment.parameter]
                _fill(piece, read(name, kind, segment.offset, segment.length))
            elif kind in MOMENTS:
                piece.zero_()

    @property
    def updates(self) -> int:
        """Return the optimizer's number of updates: the counter of its bias correction."""
        counts = {int(self._state(flat)["step"]) for flat in self.flats}
        assert len(counts) == 1, f"tensors with different numbers of updates: {sorted(counts)}"
        return counts.pop()

    def restart_bias_correction(self) -> None:
        """Reset the optimizer's update count; keep weights and moments."""
        for flat in self.flats:
            self._set_updates(flat, 0)

    def _set_updates(self, flat: Flat, updates: int) -> None:
        state = self._state(flat)
        counter = state["step"]  # torch's fused AdamW reads a tensor, on the device
        state["step"] = counter.new_tensor(float(updates)) if isinstance(counter, Tensor) else updates

    def _values(self, flat: Flat, kind: str) -> Tensor:
        tensor = flat.tensor if kind == "master" else self._state(flat)[kind]
        return tensor.detach().view(-1)

    def _state(self, flat: Flat) -> dict[str, Any]:
        """Return the optimizer's state of a tensor, initialised as before its first update if missing."""
        state = self.optimizer.state[flat.tensor]
        if not state:
            is_torch = isinstance(self.optimizer, torch.optim.AdamW)
            state["step"] = torch.zeros((), device=flat.tensor.device) if is_torch else 0
            state.update({kind: torch.zeros_like(flat.tensor) for kind in flat.moments})
        return state


def _fill(values: Tensor, found: Tensor | None) -> None:
    if found is not None:
        values.copy_(found)
