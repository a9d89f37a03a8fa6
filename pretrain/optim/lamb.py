"""Update flat tensors with LAMB, with one trust ratio per parameter in them.

You et al. 2020, "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes". Weight decay is inside the
update. Three variants are in use (`optim.variant`):

| variant | bias correction | biases and LayerNorm                | code                       |
|---------|-----------------|-------------------------------------|----------------------------|
| nvidia  | yes             | no decay, trust ratio 1             | apex, DeepLearningExamples |
| google  | no              | no decay, trust ratio 1             | google-research/albert     |
| paper   | yes             | decay and trust ratio as all others | Algorithm 2                |

A trust ratio is 1 if either norm is 0. The engine clips by the global gradient norm before the moments; NVIDIA's
kernel does the same inside the optimizer.

Under ZeRO a rank holds flat slices of many parameters. Goal: the same update as unsharded LAMB, on every rank.
Phases of `step`:
    1. one pass over each flat tensor: moments, the update u written over the gradient, and squared norms of w and u
       per segment (see `Layout`); padding is in no segment and is unchanged;
    2. one small float64 all-reduce sums the squared norms per parameter over ranks;
    3. one pass: w <- w - lr * ratio * u.
The passes are in lamb_triton.py (CUDA) and lamb_torch.py (elsewhere).
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from pretrain.optim.flat_layout import Layout, Passes, whole
from pretrain.optim.lamb_torch import choose, coefficients


class Lamb(Optimizer):
    """LAMB over plain tensors, or over the flat tensors of a sharding engine after `use_layouts`.

    `step` overwrites the gradients with the updates. State per tensor: `exp_avg`, `exp_avg_sq`, and `step`, its
    number of updates so far.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        bias_correction: bool = True,
        trust_clamp: tuple[float, float] | None = None,
        kernels: str = "auto",
    ) -> None:
        """Set up LAMB. A group has trust ratios if `trust` is True, or if `trust` is absent and it has weight
        decay. `kernels`: see pretrain.optim.lamb_torch.choose."""
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        for group in self.param_groups:
            group.setdefault("trust", group["weight_decay"] != 0)
        self._bias_correction, self._trust_clamp, self._kernels = bias_correction, trust_clamp, kernels
        self._layout_of: Callable[[Tensor], Layout] | None = None
        self._sum_over_ranks: Callable[[Tensor], None] | None = None
        self._ratios: dict[int, tuple[tuple[str, ...], Tensor]] = {}

    def use_layouts(
        self, layout_of: Callable[[Tensor], Layout], sum_over_ranks: Callable[[Tensor], None] | None
    ) -> None:
        """Set the function that returns a tensor's layout; `sum_over_ranks` sums a small tensor over ranks in place."""
        self._layout_of, self._sum_over_ranks = layout_of, sum_over_ranks
        self._ratios.clear()

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every tensor that has a gradient. Collective if tensors are split over ranks."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        tensors = [
            (group, tensor, self._layout(group, position, tensor), choose(tensor, self._kernels))
            for group in self.param_groups
            for position, tensor in enumerate(group["params"])
            if tensor.grad is not None
        ]
        squares = [self._update(*given) for given in tensors]
        ratios = self._trust_ratios(
            [(layout, own) for (*_, layout, _), own in zip(tensors, squares, strict=True)]
        )
        for (group, tensor, layout, passes), own in zip(tensors, ratios, strict=True):
            if own is not None:
                self._ratios[id(tensor)] = layout.names, own
            passes.apply(tensor, tensor.grad, layout, own, group["lr"])
        return loss

    def trust_ratios(self) -> dict[str, Tensor]:
        """Return the last update's trust ratios by parameter name: float64 scalars, no device sync."""
        return {
            name: ratio
            for names, ratios in self._ratios.values()
            for name, ratio in zip(names, ratios, strict=True)
        }

    def mean_trust_ratio(self) -> Tensor | None:
        """Return the mean trust ratio, a float64 scalar on the device; None before the first update."""
        return torch.cat([ratios for _, ratios in self._ratios.values()]).mean() if self._ratios else None

    def _layout(self, group: dict[str, Any], position: int, tensor: Tensor) -> Layout:
        if self._layout_of is not None:
            return self._layout_of(tensor)
        index = next(i for i, other in enumerate(self.param_groups) if other is group)
        return whole(f"{index}.{position}", tensor.numel())

    def _update(self, group: dict[str, Any], tensor: Tensor, layout: Layout, passes: Passes) -> Tensor | None:
        """Run the first pass over a tensor; return its squared norms if it has trust ratios."""
        state = self.state[tensor]
        if not state:
            state.update(step=0, exp_avg=torch.zeros_like(tensor), exp_avg_sq=torch.zeros_like(tensor))
        state["step"] += 1
        numbers = coefficients(group, state["step"], self._bias_correction)
        assert tensor.grad is not None
        return passes.update(
            tensor, tensor.grad, state["exp_avg"], state["exp_avg_sq"], layout, numbers, group["trust"]
        )

    def _trust_ratios(self, tensors: list[tuple[Layout, Tensor | None]]) -> list[Tensor | None]:
        """Compute ||w|| / ||u|| per parameter of each tensor, 1 if either norm is 0; None without squares."""
        given = [own for _, own in tensors if own is not None]
        if not any(own.shape[1] for own in given):
            return [None] * len(tensors)
        squares = torch.cat(given, dim=1)
        if self._sum_over_ranks is not None and any(
            layout.split for layout, own in tensors if own is not None
        ):
            self._sum_over_ranks(squares)
        weights, updates = squares.sqrt()
        ratios = torch.where((weights > 0) & (updates > 0), weights / updates, torch.ones_like(weights))
        if self._trust_clamp is not None:
            ratios = ratios.clamp(*self._trust_clamp)
        parts = iter(ratios.split([own.shape[1] for own in given]))
        return [None if own is None else next(parts) for _, own in tensors]
