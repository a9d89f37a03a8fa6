"""Gradients of flat tensors in, updated flat tensors out: LAMB whose trust ratios are those of the parameters.

You et al. 2020, "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes". Weight decay is inside the
update. Three forms are in use (`optim.form`):

| form   | bias correction | biases and LayerNorm               | code                                   |
|--------|-----------------|------------------------------------|----------------------------------------|
| nvidia | yes             | no decay, trust ratio 1            | apex, DeepLearningExamples             |
| google | no              | no decay, trust ratio 1            | google-research/albert                 |
| paper  | yes             | decay and trust ratio as all others | Algorithm 2                           |

A trust ratio is 1 where a norm is 0. Clipping is the engine's, before the moments, over the norm of all gradients;
NVIDIA's kernel does the same inside the optimizer.

Under ZeRO a rank holds flat slices of many parameters. Goal: the update of an unsharded LAMB, on every rank.
Phases of `step`:
    1. one pass over each flat tensor: moments, and the update u in the gradient's place;
    2. squared norms of w and u, piece by piece (see `Layout`), summed per parameter over the ranks in one small
       all-reduce, float64; padding is in no piece, and its gradient is set to zero, so that it stays as it is;
    3. one pass: w <- w - lr * ratio * u.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from pretrain.optim.segments import Layout, squared_norm, whole


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
    ) -> None:
        """A group has trust ratios if it says `trust=True`, or nothing of it and has weight decay."""
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        for group in self.param_groups:
            group.setdefault("trust", group["weight_decay"] != 0)
        self._bias_correction, self._trust_clamp = bias_correction, trust_clamp
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
            (group, tensor, self._layout(group, position, tensor))
            for group in self.param_groups
            for position, tensor in enumerate(group["params"])
            if tensor.grad is not None
        ]
        for group, tensor, layout in tensors:
            self._update_in_place_of_gradient(group, tensor, layout)
        self._scale_updates([(t, layout) for group, t, layout in tensors if group["trust"]])
        for group, tensor, _ in tensors:
            tensor.add_(tensor.grad, alpha=-group["lr"])
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

    def _update_in_place_of_gradient(self, group: dict[str, Any], tensor: Tensor, layout: Layout) -> None:
        gradient = tensor.grad
        assert gradient is not None
        for start, length in layout.padding():
            gradient.view(-1)[start : start + length].zero_()
        state = self.state[tensor]
        if not state:
            state.update(step=0, exp_avg=torch.zeros_like(tensor), exp_avg_sq=torch.zeros_like(tensor))
        state["step"] += 1
        first, second = state["exp_avg"], state["exp_avg_sq"]
        beta1, beta2 = group["betas"]
        first.lerp_(gradient, 1 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        # m̂ / (sqrt(v̂) + eps), both sides of the fraction times sqrt(1 - beta2^t): no temporary is needed.
        steps = state["step"] if self._bias_correction else math.inf  # beta^inf = 0: no correction
        root = math.sqrt(1 - beta2**steps)
        torch.sqrt(second, out=gradient)
        gradient.add_(group["eps"] * root)
        torch.div(first, gradient, out=gradient)
        gradient.mul_(root / (1 - beta1**steps))
        if group["weight_decay"] != 0:
            gradient.add_(tensor, alpha=group["weight_decay"])

    def _scale_updates(self, tensors: list[tuple[Tensor, Layout]]) -> None:
        """Multiplies each piece of the updates by its parameter's ||w|| / ||u||; 1 where either norm is 0."""
        if not any(layout.names for _, layout in tensors):
            return
        squares = self._squared_norms(tensors)
        if self._sum_over_ranks is not None and any(layout.split for _, layout in tensors):
            self._sum_over_ranks(squares)
        weights, updates = squares.sqrt()
        ratios = torch.where((weights > 0) & (updates > 0), weights / updates, torch.ones_like(weights))
        if self._trust_clamp is not None:
            ratios = ratios.clamp(*self._trust_clamp)
        first = 0
        for tensor, layout in tensors:
            own = ratios[first : first + len(layout.names)]
            first += len(layout.names)
            self._ratios[id(tensor)] = layout.names, own
            update, scale = tensor.grad.view(-1), own.to(tensor.dtype)  # type: ignore[union-attr]
            for segment in layout.segments:
                update[segment.start : segment.start + segment.length].mul_(scale[segment.parameter])

    @staticmethod
    def _squared_norms(tensors: list[tuple[Tensor, Layout]]) -> Tensor:
        """(2, parameters) float64: this rank's share of ||w||^2 and ||u||^2, in the order of the layouts' names."""
        columns: list[list[Tensor]] = []
        for tensor, layout in tensors:
            here: list[list[Tensor]] = [[] for _ in layout.names]
            values, update = tensor.view(-1), tensor.grad.view(-1)  # type: ignore[union-attr]
            for segment in layout.segments:
                piece = slice(segment.start, segment.start + segment.length)
                here[segment.parameter].append(
                    torch.stack((squared_norm(values[piece]), squared_norm(update[piece])))
                )
            columns += here
        nothing = torch.zeros(2, dtype=torch.float64, device=tensors[0][0].device)
        return torch.stack([sum(parts, nothing) for parts in columns], dim=1)
