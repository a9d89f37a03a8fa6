"""Bring matrices that are cut over ranks whole to one rank each, and hand the results back.

Goal: each matrix is processed once, whole, by one rank, and every rank that holds a part of it gets its part of the
result, bit for bit. Phases of `Exchange.run`:
    1. each matrix has an owner: the least busy of the ranks that hold a part of it, the costliest matrix first. Every
       rank computes the same owners from the layouts of all ranks;
    2. ranks send the parts that they hold to the owners, in one all-to-all; none where nothing is cut (at ZeRO stage
       0 every rank has all matrices, and at stages 1 and 2 most are on one rank whole);
    3. owners process their matrices;
    4. owners send the parts of the results to the ranks that hold them, in one all-to-all.
Padding is in no part and is unchanged.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pretrain.optim.flat_layout import Collectives, Layout

Shape = tuple[int, int]


class Part(NamedTuple):
    """Contiguous elements of a matrix that a rank holds."""

    tensor: int
    """Index of the rank's tensor that holds them."""
    start: int
    """First element in that tensor."""
    length: int
    offset: int
    """First element in the flattened matrix."""

    def of(self, values: Sequence[Tensor]) -> Tensor:
        """Return the elements as a view of `values`, a rank's flattened tensors."""
        return values[self.tensor][self.start : self.start + self.length]


class Matrix(NamedTuple):
    """A matrix and who holds which parts of it."""

    name: str
    shape: Shape
    parts: tuple[tuple[Part, ...], ...]
    """By rank; replicated matrices are one part on each."""
    replicated: bool
    owner: int

    @property
    def cost(self) -> int:
        """Return the operations of a product of the matrix with its transpose, up to a factor."""
        return self.shape[0] * self.shape[1] * min(self.shape)


def matrices_of(layouts: Sequence[Sequence[Layout]], shapes: Mapping[str, Shape]) -> list[Matrix]:
    """List the matrices in corresponding tensors of all ranks, with their owners. `layouts`: by tensor, then rank."""
    found = []
    for tensor, by_rank in enumerate(layouts):
        for index, name in enumerate(by_rank[0].names):
            parts = tuple(
                tuple(
                    Part(tensor, s.start, s.length, s.offset) for s in layout.segments if s.parameter == index
                )
                for layout in by_rank
            )
            found.append(Matrix(name, shapes[name], parts, not by_rank[0].split, owner=0))
    return _with_owners(found, [0] * len(layouts[0]) if layouts else [])


def _with_owners(matrices: list[Matrix], work: list[int]) -> list[Matrix]:
    owners = {}
    for matrix in sorted(matrices, key=lambda matrix: -matrix.cost):
        holders = [rank for rank, parts in enumerate(matrix.parts) if parts]
        owners[matrix.name] = min(holders, key=lambda rank: work[rank])
        work[owners[matrix.name]] += matrix.cost
    return [matrix._replace(owner=owners[matrix.name]) for matrix in matrices]


class Exchange:
    """The exchanges of one set of tensors, prepared once."""

    def __init__(self, matrices: Sequence[Matrix], collectives: Collectives) -> None:
        self._matrices, self._collectives = matrices, collectives
        self._away = [
            (number, rank, part)
            for number, matrix in enumerate(matrices)
            for rank, parts in enumerate(matrix.parts)
            for part in parts
            if rank != matrix.owner
        ]
        """Parts on other ranks than their matrix's owner: (matrix, rank that holds it, part), equal on all ranks."""

    def run(self, values: Sequence[Tensor], process: Callable[[Tensor], Tensor]) -> None:
        """Replace each matrix in `values`, this rank's flattened tensors, by what `process` makes of it. Collective.

        `process` gets a matrix that it must not change, and is called for this rank's own only."""
        results = {}
        for number, matrix in self._gather(values).items():
            result = process(matrix.view(self._matrices[number].shape))
            results[number] = result.to(matrix.dtype).reshape(-1)
        self._scatter(results, values)

    def _gather(self, values: Sequence[Tensor]) -> dict[int, Tensor]:
        """Return the flattened matrices of which this rank is the owner, by number."""
        here = self._collectives.rank
        away = [one for one in self._away if not self._matrices[one[0]].replicated]
        sent = [(self._matrices[n].owner, part.of(values)) for n, rank, part in away if rank == here]
        due = [(rank, (n, part)) for n, rank, part in away if self._matrices[n].owner == here]
        received = self._swap(values[:1], sent, due, needed=bool(away))
        found = {}
        for number, matrix in enumerate(self._matrices):
            if matrix.owner == here:
                own = matrix.parts[here]
                numel = matrix.shape[0] * matrix.shape[1]
                found[number] = own[0].of(values) if own[0].length == numel else values[0].new_empty(numel)
                for part in own if own[0].length != numel else ():
                    found[number][part.offset : part.offset + part.length] = part.of(values)
        for (number, part), elements in received:
            found[number][part.offset : part.offset + part.length] = elements
        return found

    def _scatter(self, results: Mapping[int, Tensor], values: Sequence[Tensor]) -> None:
        """Write the results' parts into every rank's `values`."""
        here = self._collectives.rank
        sent = [(rank, _slice(results[n], part)) for n, rank, part in self._away if n in results]
        due = [(self._matrices[n].owner, (n, part)) for n, rank, part in self._away if rank == here]
        for (_, part), elements in self._swap(values[:1], sent, due, needed=bool(self._away)):
            part.of(values).copy_(elements)
        for number, result in results.items():
            for part in self._matrices[number].parts[here]:
                part.of(values).copy_(_slice(result, part))

    def _swap(
        self,
        like: Sequence[Tensor],
        sent: list[tuple[int, Tensor]],
        due: list[tuple[int, tuple[int, Part]]],
        needed: bool,
    ) -> list[tuple[tuple[int, Part], Tensor]]:
        """Send (to, elements) and return what is due here, as (what, elements) for each (from, what) of `due`.
        `needed`: whether anything travels between any ranks; then all ranks take part. `like`: of its dtype."""
        if not needed:
            return []
        ranks = range(self._collectives.size)
        ordered = [elements for rank in ranks for to, elements in sent if to == rank]
        expected = [what for rank in ranks for source, what in due if source == rank]
        sizes = [sum(len(elements) for to, elements in sent if to == rank) for rank in ranks]
        due_sizes = [sum(part.length for source, (_, part) in due if source == rank) for rank in ranks]
        received = self._collectives.swap(torch.cat([like[0][:0], *ordered]), sizes, due_sizes)
        return list(zip(expected, received.split([part.length for _, part in expected]), strict=True))


def _slice(matrix: Tensor, part: Part) -> Tensor:
    return matrix[part.offset : part.offset + part.length]
