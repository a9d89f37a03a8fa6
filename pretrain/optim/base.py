"""Group a model's parameters, build an optimizer over the groups, and define what all optimizers share.

Weight decay applies to tensors of two or more dimensions; so does LAMB's trust ratio (in Google's variant even if
the decay is 0). Vectors and scalars, in an encoder the biases and LayerNorm weights, have neither: the exclusions
of the published recipes (names with `bias`, `LayerNorm`, `layer_norm`, `gamma`, `beta`), matched by shape instead
of by name.

All optimizers subtract lr * weight_decay * w. With `optim.decoupled_decay` a group's `weight_decay` is
`optim.weight_decay` over the peak rate of the phase (`set_rate`), so that the peak cancels: MosaicML composer's
DecoupledAdamW.
"""

from collections.abc import Iterable
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pretrain.config.settings import OptimSettings
from pretrain.optim.flat_layout import Sharding
from pretrain.optim.registry import load, optimizer_record

Group = dict[str, Any]
"""A parameter group of torch: `params`, `weight_decay`, and after `parameter_groups` its `moments`. `matrices`: True
where an optimizer treats matrices by themselves; `lr_ratio`: their rate over the optimizer's."""


class BaseOptimizer(Optimizer):
    """An optimizer by the settings optim.*, over plain tensors, or over the flat tensors of a sharding engine after
    `use_sharding`.

    It is without torch's wrappers around what a run calls: torch wraps methods of its optimizers so that code compiled
    around them leaves them out, and the wrappers import the compiler at their first call, whether anything is compiled
    or not: more than a second on each rank. A run compiles its model and never its optimizer.
    """

    add_param_group = unwrap(Optimizer.add_param_group)
    zero_grad = unwrap(Optimizer.zero_grad)

    def __init__(self, params: Iterable[Any], settings: OptimSettings, kernels: str = "auto") -> None:
        """Set up the groups; what they do not say is as in `settings`. `kernels`: `train.kernels`."""
        beta1, beta2 = settings.betas
        super().__init__(
            params,
            {
                "lr": settings.lr,
                "betas": (beta1, beta2),
                "eps": settings.eps,
                "weight_decay": settings.weight_decay,
            },
        )

    @classmethod
    def groups(cls, model: nn.Module, settings: OptimSettings) -> list[Group]:
        """Return the parameter groups, some with `optim.weight_decay` and some without; some may be empty."""
        return by_shape(model, settings)

    def use_sharding(self, sharding: Sharding) -> None:
        """Learn how the tensors are cut; an elementwise optimizer need not know. Collective."""

    def trust_ratios(self) -> dict[str, Tensor]:
        """Return LAMB's trust ratios of the last update by parameter; {} for other optimizers."""
        return {}

    def mean_trust_ratio(self) -> Tensor | None:
        """Return the mean trust ratio; None before the first update and for other optimizers."""
        return None


class AdamW(BaseOptimizer, torch.optim.AdamW):
    """AdamW with decoupled decay (Loshchilov & Hutter 2019): torch's, bit for bit, whose step computes no gradient of
    its own (`differentiable`). Elementwise, so it can be sharded and padded anywhere."""

    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))

    def __init__(self, params: Iterable[Any], settings: OptimSettings, kernels: str = "auto") -> None:
        """Set up torch's fused kernel, whatever `kernels` says."""
        beta1, beta2 = settings.betas
        torch.optim.AdamW.__init__(
            self,
            params,
            lr=settings.lr,
            betas=(beta1, beta2),
            eps=settings.eps,
            weight_decay=settings.weight_decay,
            fused=True,
        )


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that require a gradient, by name in model order; a tied one once, under its first name."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def by_shape(model: nn.Module, settings: OptimSettings) -> list[Group]:
    """Return the tensors of two or more dimensions with decay, then the others without."""
    parameters = list(trainable_parameters(model).values())
    return [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]


def parameter_groups(model: nn.Module, settings: OptimSettings) -> list[Group]:
    """Build the parameter groups of `optim.name`, without empty ones."""
    record = optimizer_record(settings.name)
    groups = [group for group in load(settings.name).groups(model, settings) if group["params"]]
    for group in groups:
        group["moments"] = record.moments_of(matrices=group.get("matrices", False))
        if settings.decoupled_decay:
            group["decoupled_decay"] = group["weight_decay"] / (group.get("lr_ratio") or 1.0)
            _decouple(group, settings.lr)
    return groups


def build_optimizer(model: nn.Module, settings: OptimSettings, kernels: str = "auto") -> BaseOptimizer:
    """Build the optimizer `optim.name` over the parameters of `model`; the engine sets its learning rate each step.
    `kernels`: `train.kernels`."""
    return load(settings.name)(parameter_groups(model, settings), settings, kernels)


def set_rate(optimizer: Optimizer, lr: float, peak: float | None) -> None:
    """Set the learning rate of the next update, and with `peak`, the phase's `optim.lr`, a decoupled decay."""
    for group in optimizer.param_groups:
        group["lr"] = lr
        if peak is not None and "decoupled_decay" in group:
            _decouple(group, peak)


def _decouple(group: Group, peak: float) -> None:
    group["weight_decay"] = group["decoupled_decay"] / peak if peak else 0.0
