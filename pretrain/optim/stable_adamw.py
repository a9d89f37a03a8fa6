"""Update flat tensors with StableAdamW: AdamW whose rate is lowered where the second moment lags behind the gradient.

Wortsman et al. 2023, "Stable and low-precision training for large-scale vision-language models" (arXiv 2304.13013),
Algorithm 2. For each parameter tensor, with v after this step's update and both moments bias-corrected:

    RMS = sqrt(mean(g^2 / max(v, eps^2)))
    rate = lr / max(1, RMS)
    w <- w - rate * (m / (sqrt(v) + eps) + weight_decay * w)

As in the paper every tensor is treated, biases included, and the decay is lowered with the rate. The paper corrects the
bias by betas that grow from 0; the corrected moments are the same.
"""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from pretrain.optim.flat_layout import Layout, Passes, Sums
from pretrain.optim.flat_optimizer import FlatOptimizer, Group


class StableAdamW(FlatOptimizer):
    """StableAdamW over plain tensors, or over the flat tensors of a sharding engine after `use_layouts`."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        kernels: str = "auto",
    ) -> None:
        """Set up StableAdamW. `kernels`: see pretrain.optim.lamb_torch.choose."""
        super().__init__(params, lr, betas, eps, weight_decay, kernels=kernels)

    def sums_of(self, group: Group) -> Sums:
        """Return the sums of the RMS, for every group."""
        return Sums.RMS

    def factors(self, sums: Tensor) -> Tensor:
        """Compute 1 / max(1, RMS) per parameter."""
        squares, elements = sums
        return 1 / (squares / elements.clamp(min=1)).sqrt().clamp(min=1)

    def _update(self, group: Group, tensor: Tensor, layout: Layout, passes: Passes) -> Tensor | None:
        sums = super()._update(group, tensor, layout, passes)
        assert sums is not None
        # of the uncorrected v, with eps times the root of this correction (see Coefficients)
        sums[0] *= 1 - group["betas"][1] ** self.state[tensor]["step"]
        return sums
