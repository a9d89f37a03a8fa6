"""Update matrices with Muon, orthogonalised momentum, and all other parameters with AdamW.

Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks" (kellerjordan.github.io/posts/muon), as in
torch.optim.Muon, whose settings and order of operations these are: for a matrix of A x B, outputs x inputs,

    m <- momentum * m + (1 - momentum) * g
    d = (1 - momentum) * g + momentum * m with Nesterov's momentum, else m
    w <- w - lr * weight_decay * w - lr * factor(A, B) * orthogonalize(d)

The factor is sqrt(max(1, A / B)) (`original`), or 0.2 * sqrt(max(A, B)) (`match_rms_adamw`), with which updates are as
large as AdamW's are (Liu et al. 2025, "Muon is Scalable for LLM Training", arXiv 2502.16982, section 2.2).

Momentum is elementwise and needs no other rank. A matrix cut over ranks is orthogonalised whole, by one rank
(matrix_exchange.py), so that the result does not depend on the cut.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pretrain.optim.flat_layout import Collectives, Layout
from pretrain.optim.flat_optimizer import FlatOptimizer, Group
from pretrain.optim.matrix_exchange import Exchange, Shape, matrices_of

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of Jordan's quintic: steep at 0, so that five iterations bring small singular values near 1, to 0.7 to 1.2."""
LEAST_NORM = 1e-7
MUON_MOMENTS = ("exp_avg",)
"""The moments of a matrix, in optimizer state and checkpoints: an average of gradients, as Adam's first."""
FACTORS: dict[str, Callable[[int, int], float]] = {
    "original": lambda rows, columns: math.sqrt(max(1, rows / columns)),
    "match_rms_adamw": lambda rows, columns: 0.2 * math.sqrt(max(rows, columns)),
}
ALONE = Collectives(0, 1, lambda values: None, lambda values, sent, due: values)


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
    """Muon for the groups with `matrices` True, AdamW for the others; over plain tensors, or over the flat tensors of a
    sharding engine after `use_layouts` and `use_matrices`.

    State of a tensor of matrices: `exp_avg`, and `step`; of others: see FlatOptimizer.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.95,
        nesterov: bool = True,
        iterations: int = 5,
        rate: str = "match_rms_adamw",
        lr_ratio: float = 1.0,
        dtype: torch.dtype = torch.float32,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        kernels: str = "auto",
    ) -> None:
        """Set up Muon. `rate`: one of FACTORS; `lr_ratio`: the matrices' lr over the groups'; `dtype`: of the
        orthogonalisation; `betas`, `eps`, `kernels`: AdamW's, see FlatOptimizer."""
        super().__init__(params, lr, betas, eps, weight_decay, kernels=kernels)
        self._momentum, self._nesterov, self._iterations = momentum, nesterov, iterations
        self._factor, self._lr_ratio, self._dtype = FACTORS[rate], lr_ratio, dtype
        self._shapes: Mapping[str, Sequence[int]] = {}
        self._layouts_of: Callable[[Tensor], Sequence[Layout]] | None = None
        self._collectives = ALONE
        self._exchanges: dict[tuple[int, ...], Exchange] = {}

    def use_matrices(
        self,
        shapes: Mapping[str, Sequence[int]],
        layouts_of: Callable[[Tensor], Sequence[Layout]],
        collectives: Collectives,
    ) -> None:
        """Set the shapes by parameter name, and the function that returns a tensor's layouts on all ranks."""
        self._shapes, self._layouts_of, self._collectives = shapes, layouts_of, collectives
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
        lr = group["lr"] * self._lr_ratio
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
        found = {}
        for name in layout.names:
            rows, columns = self._shapes.get(name, tensor.shape)
            found[name] = (rows, columns)
        return found

    def _exchange(
        self, tensors: list[Tensor], layouts: list[Layout], shapes: list[dict[str, Shape]]
    ) -> Exchange:
        key = tuple(map(id, tensors))
        if key not in self._exchanges:
            by_rank = (
                [[one] for one in layouts] if self._layouts_of is None else map(self._layouts_of, tensors)
            )
            together = {name: shape for one in shapes for name, shape in one.items()}
            self._exchanges[key] = Exchange(matrices_of(list(by_rank), together), self._collectives)
        return self._exchanges[key]
