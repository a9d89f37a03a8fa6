"""Group a model's parameters, and build an optimizer over the groups.

Weight decay applies to tensors of two or more dimensions; so does LAMB's trust ratio (in Google's variant even if
the decay is 0). Vectors and scalars, in an encoder the biases and LayerNorm weights, have neither: the exclusions
of the published recipes (names with `bias`, `LayerNorm`, `layer_norm`, `gamma`, `beta`), matched by shape instead
of by name. LAMB's paper has no exclusions; its variant (`optim.variant=paper`) has one group.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from pretrain.config.settings import OptimSettings
from pretrain.optim.lamb import Lamb


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that require a gradient, by name in model order; a tied one once, under its first name."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def parameter_groups(model: nn.Module, settings: OptimSettings) -> list[dict[str, Any]]:
    """Build the parameter groups with and without `optim.weight_decay`, in this order, or a single one, depending
    on `optim.variant`. Empty groups are left out."""
    parameters, weight_decay = list(trainable_parameters(model).values()), settings.weight_decay
    if settings.name == "lamb" and settings.variant == "paper":
        return [{"params": parameters, "weight_decay": weight_decay, "trust": True}]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    if (
        settings.name == "lamb" and settings.variant == "google"
    ):  # by exclusion, not by the value of the decay
        groups[0]["trust"], groups[1]["trust"] = True, False
    return [group for group in groups if group["params"]]


def _lamb(groups: list[dict[str, Any]], settings: OptimSettings, kernels: str) -> Optimizer:
    return Lamb(
        groups,
        lr=settings.lr,
        betas=(settings.betas[0], settings.betas[1]),
        eps=settings.eps,
        bias_correction=settings.variant != "google",
        trust_clamp=(settings.trust_clamp[0], settings.trust_clamp[1]) if settings.trust_clamp else None,
        kernels=kernels,
    )


def _adamw(groups: list[dict[str, Any]], settings: OptimSettings, kernels: str) -> Optimizer:
    """Build AdamW with decoupled decay (Loshchilov & Hutter 2019). Elementwise, so it can be sharded and padded
    anywhere."""
    betas = (settings.betas[0], settings.betas[1])
    return torch.optim.AdamW(groups, lr=settings.lr, betas=betas, eps=settings.eps, fused=True)


OPTIMIZERS: dict[str, Callable[[list[dict[str, Any]], OptimSettings, str], Optimizer]] = {
    "lamb": _lamb,
    "adamw": _adamw,
}


def build_optimizer(model: nn.Module, settings: OptimSettings, kernels: str = "auto") -> Optimizer:
    """Build the optimizer `optim.name` over the parameters of `model`; the engine sets its learning rate each step.
    `kernels`: `train.kernels`, LAMB's."""
    return OPTIMIZERS[settings.name](parameter_groups(model, settings), settings, kernels)
