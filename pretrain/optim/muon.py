"""Update matrices with Muon, orthogonalised momentum, and all other parameters with AdamW.

Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks" (kellerjordan.github.io/posts/muon), as in
torch.optim.Muon, whose settings and order of operations these are: for a matrix of A x B, outputs x inputs,

    m <- momentum * m + (1 - momentum) * g
    d = (1 - momentum) * g + momentum * m with Nesterov's momentum, else m
    w <- w - lr * weight_decay * w - lr * factor(A, B) * orthogonalize(d)

The factor is sqrt(max(1, A / B)) (`original`), or 0.2 * sqrt(max(A, B)) (`match_rms_adamw`), with which updates are as
large as AdamW's are (Liu et al. 2025, "Muon is Scalable for LLM Training", arXiv 2502.16982, section 2.2).

Momentum is elementwise and needs no other rank. A matrix cut over ranks is orthogonalised whole, by one rank
(`Exchange`), so that the result does not depend on the cut.

Matrices are the weights of linear layers. Embeddings, and with them the projections to the vocabulary that are tied to
them, predictors of labels (a matrix of fewer than MIN_SIDE rows or columns), vectors and all else are AdamW's.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pretrain.config.settings import OptimSettings
from pretrain.optim.base import Group, by_shape
from pretrain.optim.flat_layout import ALONE, Collectives, Layout, Sharding
from pretrain.optim.lamb import FlatOptimizer

# The exchange: bring matrices that are cut over ranks whole to one rank each, and hand the results back.


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
    """The exchanges of one set of tensors, prepared once.

    Goal: each matrix is processed once, whole, by one rank, and every rank that holds a part of it gets its part of the
    result, bit for bit. Phases of `run`:
        1. each matrix has an owner: the least busy of the ranks that hold a part of it, the costliest matrix first.
           Every rank computes the same owners from the layouts of all ranks;
        2. ranks send the parts that they hold to the owners, in one all-to-all; none where nothing is cut (at ZeRO
           stage 0 every rank has all matrices, and at stages 1 and 2 most are on one rank whole);
        3. owners process their matrices;
        4. owners send the parts of the results to the ranks that hold them, in one all-to-all.
    Padding is in no part and is unchanged.
    """

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


# The orthogonalisation, and the optimizer.

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of Jordan's quintic: steep at 0, so that five iterations bring small singular values near 1, to 0.7 to 1.2."""
LEAST_NORM = 1e-7
MIN_SIDE = 8
"""Fewest rows and columns of a matrix of Muon's: one of three labels' rows has nothing to orthogonalise."""
FACTORS: dict[str, Callable[[int, int], float]] = {
    "original": lambda rows, columns: math.sqrt(max(1, rows / columns)),
    "match_rms_adamw": lambda rows, columns: 0.2 * math.sqrt(max(rows, columns)),
}


def orthogonalize(matrix: Tensor, iterations: int, dtype: torch.dtype) -> Tensor:
    """Compute UV^T of the matrix's singular value decomposition USV^T, approximately: Newton-Schulz iterations
    x <- a x + (b y + c y^2) x with y = x x^T, computed in `dtype` over the shorter side."""
    a, b, c = COEFFICIENTS
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.to(dtype)
    x = x.T if tall else x
    x = x / x.norm().clamp(min=LEAST_NORM)
    for _ in range(iterations):
        y = x @ x.T
        x = torch.addmm(x, torch.addmm(y, y, y, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x


class Muon(FlatOptimizer):
    """Muon for the groups with `matrices` True, AdamW for the others.

    State of a tensor of matrices: `exp_avg`, an average of gradients as Adam's first, and `step`; of others: see
    FlatOptimizer.
    """

    def __init__(self, params: Iterable[Any], settings: OptimSettings, kernels: str = "auto") -> None:
        """Set up Muon."""
        super().__init__(params, settings, kernels)
        self._momentum, self._nesterov = settings.muon_momentum, settings.muon_nesterov
        self._iterations, self._factor = settings.muon_iterations, FACTORS[settings.muon_adjust_lr_fn]
        self._dtype = torch.bfloat16 if settings.muon_precision == "bf16" else torch.float32
        self._layouts_of_ranks: Mapping[int, Sequence[Layout]] = {}
        self._exchanges: dict[tuple[int, ...], Exchange] = {}

    @classmethod
    def groups(cls, model: nn.Module, settings: OptimSettings) -> list[Group]:
        """Return the matrices, and the groups by shape of the others."""
        tables = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding)}
        linear = {id(part.weight) for part in model.modules() if isinstance(part, nn.Linear)}
        hidden = linear - tables
        decayed, plain = by_shape(model, settings)
        matrices = [p for p in decayed["params"] if id(p) in hidden and min(p.shape) >= MIN_SIDE]
        taken = set(map(id, matrices))
        decayed["params"] = [p for p in decayed["params"] if id(p) not in taken]
        first = {"params": matrices, "weight_decay": settings.weight_decay}
        return [{**first, "matrices": True, "lr_ratio": settings.muon_lr_ratio}, decayed, plain]

    def use_sharding(self, sharding: Sharding) -> None:
        """Update matrices that are cut so, from the next step on. Collective."""
        super().use_sharding(sharding)
        self._layouts_of_ranks = sharding.layouts_of_ranks()
        self._exchanges.clear()

    def _step_groups(self, groups: list[Group]) -> None:
        super()._step_groups([group for group in groups if not group.get("matrices")])
        for group in groups:
            if group.get("matrices"):
                self._step_matrices(group)

    def _step_matrices(self, group: Group) -> None:
        tensors = [(at, tensor) for at, tensor in enumerate(group["params"]) if tensor.grad is not None]
        layouts = [self._layout(group, at, tensor) for at, tensor in tensors]
        shapes = [
            self._shapes_of(layout, tensor) for layout, (_, tensor) in zip(layouts, tensors, strict=True)
        ]
        updates = [self._direction(tensor) for _, tensor in tensors]
        exchange = self._exchange([tensor for _, tensor in tensors], layouts, shapes)
        exchange.run(updates, lambda matrix: orthogonalize(matrix, self._iterations, self._dtype))
        lr = group["lr"] * group.get("lr_ratio", 1.0)
        for layout, shape, update, (_, tensor) in zip(layouts, shapes, updates, tensors, strict=True):
            tensor.mul_(1 - lr * group["weight_decay"])
            for index, start, length, _ in layout.segments:
                rate = lr * self._factor(*shape[layout.names[index]])
                tensor.view(-1)[start : start + length].add_(update[start : start + length], alpha=-rate)

    def _direction(self, tensor: Tensor) -> Tensor:
        """Update the moment; return what is to be orthogonalised, flattened, in the gradient's place."""
        state, gradient = self.state[tensor], tensor.grad
        assert gradient is not None
        if not state:
            state.update(step=0, exp_avg=torch.zeros_like(tensor))
        state["step"] += 1
        moment = state["exp_avg"].lerp_(gradient, 1 - self._momentum)
        if self._nesterov:
            gradient.lerp_(moment, self._momentum)
        else:
            gradient.copy_(moment)
        return gradient.view(-1)

    def _shapes_of(self, layout: Layout, tensor: Tensor) -> dict[str, Shape]:
        shapes = self._sharding.shapes if self._sharding else {}
        found = {}
        for name in layout.names:
            rows, columns = shapes.get(name, tensor.shape)
            found[name] = (rows, columns)
        return found

    def _exchange(
        self, tensors: list[Tensor], layouts: list[Layout], shapes: list[dict[str, Shape]]
    ) -> Exchange:
        key = tuple(map(id, tensors))
        if key not in self._exchanges:
            by_rank = [
                self._layouts_of_ranks.get(id(tensor), [layout])
                for tensor, layout in zip(tensors, layouts, strict=True)
            ]
            together = {name: shape for one in shapes for name, shape in one.items()}
            collectives = self._sharding.collectives if self._sharding else ALONE
            self._exchanges[key] = Exchange(matrices_of(by_rank, together), collectives)
        return self._exchanges[key]
