"""Update flat tensors with LAMB whose trust ratios are those of the parameters in them.

You et al. 2020, "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes". Weight decay is inside the
update. Three variants are in use (`optim.variant`):

| variant | bias correction | biases and LayerNorm                | code                       |
|---------|-----------------|-------------------------------------|----------------------------|
| nvidia  | yes             | no decay, trust ratio 1             | apex, DeepLearningExamples |
| google  | no              | no decay, trust ratio 1             | google-research/albert     |
| paper   | yes             | decay and trust ratio as all others | Algorithm 2                |

A trust ratio is 1 where a norm is 0. Clipping is the engine's, before the moments, over the norm of all gradients;
NVIDIA's kernel does the same inside the optimizer.

Under ZeRO a rank holds flat slices of many parameters. Goal: the update of an unsharded LAMB, on every rank.
Phases of `step`:
    1. one pass over each flat tensor: moments, the update u in the gradient's place, and squared norms of w and u,
       piece by piece (see `Layout`); padding is in no piece and stays as it is;
    2. the squared norms summed per parameter over the ranks in one small all-reduce, float64;
    3. one pass: w <- w - lr * ratio * u.
The passes are in pretrain/kernels: Triton's on CUDA, the same in torch elsewhere.
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

    `step` overwrites the gradients with the updates. State of a tensor: `exp_avg`, `exp_avg_sq`, and `step`, the
    number of its updates so far.
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
        """A group has trust ratios if it says `trust=True`, or nothing of it and has weight decay. `kernels`: see
        pretrain.optim.lamb_torch.choose."""
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
        """Takes the pieces of each tensor from `layout_of`; `sum_over_ranks` adds a small tensor up in place."""
        self._layout_of, self._sum_over_ranks = layout_of, sum_over_ranks
        self._ratios.clear()

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update of every tensor that has a gradient. Collective where tensors are split over ranks."""
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
        """Trust ratio of each parameter that has one at its last update, by name; float64 scalars, no sync."""
        return {
            name: ratio
            for names, ratios in self._ratios.values()
            for name, ratio in zip(names, ratios, strict=True)
        }

    def mean_trust_ratio(self) -> Tensor | None:
        """Their mean, a float64 scalar on the device; None before the first update."""
        return torch.cat([ratios for _, ratios in self._ratios.values()]).mean() if self._ratios else None

    def _layout(self, group: dict[str, Any], position: int, tensor: Tensor) -> Layout:
        if self._layout_of is not None:
            return self._layout_of(tensor)
        index = next(i for i, other in enumerate(self.param_groups) if other is group)
        return whole(f"{index}.{position}", tensor.numel())

    def _update(self, group: dict[str, Any], tensor: Tensor, layout: Layout, passes: Passes) -> Tensor | None:
        """The first pass over a tensor; its squared norms where it has trust ratios."""
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
        """||w|| / ||u|| of each tensor's parameters, 1 where either norm is 0; None for tensors without squares."""
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
