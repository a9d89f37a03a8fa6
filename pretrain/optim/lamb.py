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

Exact under ZeRO at every stage, see flat_optimizer.py.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from pretrain.optim.flat_layout import Sums
from pretrain.optim.flat_optimizer import FlatOptimizer, Group


class Lamb(FlatOptimizer):
    """LAMB over plain tensors, or over the flat tensors of a sharding engine after `use_layouts`."""

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
        super().__init__(params, lr, betas, eps, weight_decay, bias_correction, kernels)
        for group in self.param_groups:
            group.setdefault("trust", group["weight_decay"] != 0)
        self._trust_clamp = trust_clamp

    def sums_of(self, group: Group) -> Sums:
        """Return the norms where there are trust ratios."""
        return Sums.NORMS if group["trust"] else Sums.NONE

    def factors(self, sums: Tensor) -> Tensor:
        """Compute ||w|| / ||u|| per parameter, 1 if either norm is 0."""
        weights, updates = sums.sqrt()
        ratios = torch.where((weights > 0) & (updates > 0), weights / updates, torch.ones_like(weights))
        return ratios if self._trust_clamp is None else ratios.clamp(*self._trust_clamp)

    def trust_ratios(self) -> dict[str, Tensor]:
        """Return the last update's trust ratios by parameter name: float64 scalars, no device sync."""
        return {
            name: ratio
            for names, ratios in self._latest.values()
            for name, ratio in zip(names, ratios, strict=True)
        }

    def mean_trust_ratio(self) -> Tensor | None:
        """Return the mean trust ratio, a float64 scalar on the device; None before the first update."""
        return torch.cat([ratios for _, ratios in self._latest.values()]).mean() if self._latest else None
