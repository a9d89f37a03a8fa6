"""Describe how named parameters are placed in a flat tensor, and compute exact squared norms of the pieces.

The types that optimizer, kernels, partition map and checkpoints share are here as well: nothing of them is imported.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

ROW = 1024
"""Elements that are summed in the tensor's own precision; the rows' sums are then added in float64."""


class Segment(NamedTuple):
    """A run of elements of one parameter within a flat tensor."""

    parameter: int
    """Index into Layout.names."""
    start: int
    """First element in the flat tensor."""
    length: int
    """Elements; at least one."""
    offset: int
    """First element in the flattened parameter."""


@dataclass(frozen=True)
class Layout:
    """What one flat tensor of this rank holds. Elements outside the segments are padding."""

    names: tuple[str, ...]
    """Parameters spread over this flat tensor on all ranks: the same names in the same order on each rank."""
    segments: tuple[Segment, ...]
    """The parts that this rank holds, in order of start; none of some parameters, perhaps none at all."""
    numel: int
    """Elements of the flat tensor, padding included."""
    split: bool
    """The parameters are spread over ranks, so that their norms are sums over ranks."""

    def padding(self) -> list[tuple[int, int]]:
        """The gaps between, and the tail after, the segments: (start, length) of each."""
        gaps, end = [], 0
        for segment in self.segments:
            if segment.start > end:
                gaps.append((end, segment.start - end))
            end = segment.start + segment.length
        return [*gaps, (end, self.numel - end)] if end < self.numel else gaps


@dataclass(frozen=True)
class Fragment:
    """Elements start..start+len(values)-1 of one flattened tensor: a weight (fp32 master) or a moment of it."""

    kind: str  # master, exp_avg or exp_avg_sq; buffers and frozen weights are masters too
    name: str
    start: int
    values: torch.Tensor  # 1-D

    @property
    def key(self) -> str:
        """Its name in a file."""
        return f"{self.kind}/{self.name}@{self.start}"


class Coefficients(NamedTuple):
    """The numbers of one update of one parameter group: u = scale * m / (sqrt(v) + eps) + weight_decay * w."""

    beta1: float
    beta2: float
    eps: float
    """The group's eps times sqrt(1 - beta2^t): both sides of m̂ / (sqrt(v̂) + eps) times that root, so that v̂ needs
    no memory of its own."""
    scale: float
    """sqrt(1 - beta2^t) / (1 - beta1^t)."""
    weight_decay: float


class Passes(NamedTuple):
    """The two passes. Tensors are contiguous, of one shape, dtype and device, and changed in place.

    `update(weights, gradient, first, second, layout, coefficients, norms)`: moments, and the update in the gradient's
    place; with `norms` returns (2, parameters) float64, this rank's share of ||w||^2 (before the update) and ||u||^2
    in the order of `layout.names`, else None.
    `apply(weights, update, layout, ratios, lr)`: `ratios` (parameters,) in the order of `layout.names`; None: all 1.
    """

    update: Callable[[Tensor, Tensor, Tensor, Tensor, Layout, Coefficients, bool], Tensor | None]
    apply: Callable[[Tensor, Tensor, Layout, Tensor | None, float], None]


def whole(name: str, numel: int) -> Layout:
    """The layout of a tensor that is one whole parameter."""
    return Layout((name,), (Segment(0, 0, numel, 0),) if numel else (), numel, split=False)


def squared_norm(values: Tensor) -> Tensor:
    """Sum of squares of a 1-D tensor, as a float64 scalar.

    A norm summed in one go in float32 is off by 1e-3 for the 23 million elements of BERT's word embeddings on a
    CPU, and by how much depends on where the tensor is cut; rows of 1024 are good to 1e-9 at the same speed.
    """
    rows = values.numel() // ROW
    total = torch.linalg.vector_norm(values[rows * ROW :], dtype=torch.float64).square()
    if rows:
        norms = torch.linalg.vector_norm(values[: rows * ROW].view(rows, ROW), dim=1)
        total += norms.double().square().sum()
    return total
