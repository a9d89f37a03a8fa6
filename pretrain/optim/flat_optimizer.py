"""Update plain or flat tensors by Adam's direction times one factor per parameter.

What LAMB (trust ratios) and StableAdamW (clipping by RMS) share. Under ZeRO a rank holds flat slices of many
parameters. Goal: the update of a single process that sees whole tensors, on every rank. Phases of `step`:
    1. one pass over each flat tensor: moments, the update u written over the gradient, and two sums per segment (see
       `Sums`); padding is in no segment and is unchanged;
    2. one small float64 all-reduce adds the sums per parameter over ranks; a subclass turns them into factors;
    3. one pass: w <- w - lr * factor * u, where u includes the weight decay.
The passes are in lamb_triton.py (CUDA) and lamb_torch.py (elsewhere).
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from pretrain.optim.flat_layout import Layout, Passes, Sums, whole
from pretrain.optim.lamb_torch import choose, coefficients
from pretrain.optim.uncompiled import Uncompiled

Group = dict[str, Any]


class FlatOptimizer(Uncompiled):
    """AdamW over plain tensors, or over the flat tensors of a sharding engine after `use_layouts`; subclasses set
    `sums_of` and `factors`.

    `step` overwrites the gradients with the updates. State per tensor: `exp_avg`, `exp_avg_sq`, and `step`, its
    number of updates so far.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        bias_correction: bool = True,
        kernels: str = "auto",
    ) -> None:
        """Set up the groups. `kernels`: see pretrain.optim.lamb_torch.choose."""
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self._bias_correction, self._kernels = bias_correction, kernels
        self._layout_of: Callable[[Tensor], Layout] | None = None
        self._sum_over_ranks: Callable[[Tensor], None] | None = None
        self._latest: dict[int, tuple[tuple[str, ...], Tensor]] = {}
        """Names and factors of the last update, by id of the tensor."""

    def use_layouts(
        self, layout_of: Callable[[Tensor], Layout], sum_over_ranks: Callable[[Tensor], None] | None
    ) -> None:
        """Set the function that returns a tensor's layout; `sum_over_ranks` sums a small tensor over ranks in place."""
        self._layout_of, self._sum_over_ranks = layout_of, sum_over_ranks
        self._latest.clear()

    def sums_of(self, group: Group) -> Sums:
        """Return which sums the factors of this group's parameters need; NONE: its factors are 1."""
        return Sums.NONE

    def factors(self, sums: Tensor) -> Tensor:
        """Compute the factors (parameters,) from the sums (2, parameters) over all ranks; float64."""
        raise NotImplementedError

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every tensor that has a gradient. Collective if tensors are split over ranks."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._step_groups(self.param_groups)
        return loss

    def _step_groups(self, groups: list[Group]) -> None:
        tensors = [
            (group, tensor, self._layout(group, position, tensor), choose(tensor, self._kernels))
            for group in groups
            for position, tensor in enumerate(group["params"])
            if tensor.grad is not None
        ]
        sums = [self._update(*given) for given in tensors]
        factors = self._factors_by_tensor(
            [(layout, own) for (*_, layout, _), own in zip(tensors, sums, strict=True)]
        )
        for (group, tensor, layout, passes), own in zip(tensors, factors, strict=True):
            if own is not None:
                self._latest[id(tensor)] = layout.names, own
            passes.apply(tensor, tensor.grad, layout, own, group["lr"])

    def _layout(self, group: Group, position: int, tensor: Tensor) -> Layout:
        if self._layout_of is not None:
            return self._layout_of(tensor)
        index = next(i for i, other in enumerate(self.param_groups) if other is group)
        return whole(f"{index}.{position}", tensor.numel())

    def _update(self, group: Group, tensor: Tensor, layout: Layout, passes: Passes) -> Tensor | None:
        """Run the first pass over a tensor; return its sums if its parameters have factors."""
        state = self.state[tensor]
        if not state:
            state.update(step=0, exp_avg=torch.zeros_like(tensor), exp_avg_sq=torch.zeros_like(tensor))
        state["step"] += 1
        numbers = coefficients(group, state["step"], self._bias_correction)
        assert tensor.grad is not None
        return passes.update(
            tensor, tensor.grad, state["exp_avg"], state["exp_avg_sq"], layout, numbers, self.sums_of(group)
        )

    def _factors_by_tensor(self, tensors: list[tuple[Layout, Tensor | None]]) -> list[Tensor | None]:
        """Add the sums over ranks and compute each tensor's factors; None without sums."""
        given = [own for _, own in tensors if own is not None]
        if not any(own.shape[1] for own in given):
            return [None] * len(tensors)
        sums = torch.cat(given, dim=1)
        if self._sum_over_ranks is not None and any(
            layout.split for layout, own in tensors if own is not None
        ):
            self._sum_over_ranks(sums)
        parts = iter(self.factors(sums).split([own.shape[1] for own in given]))
        return [None if own is None else next(parts) for _, own in tensors]
