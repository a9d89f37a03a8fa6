"""Group a model's parameters, and build an optimizer over the groups.

Weight decay applies to tensors of two or more dimensions; so does LAMB's trust ratio (in Google's variant even if
the decay is 0). Vectors and scalars, in an encoder the biases and LayerNorm weights, have neither: the exclusions
of the published recipes (names with `bias`, `LayerNorm`, `layer_norm`, `gamma`, `beta`), matched by shape instead
of by name. LAMB's paper has no exclusions; its variant (`optim.variant=paper`) has one group.

Muon's matrices are the weights of linear layers. Embeddings, and with them the projections to the vocabulary that are
tied to them, predictors of labels (a matrix of fewer than MIN_SIDE rows or columns), vectors and all else are AdamW's.

All optimizers subtract lr * weight_decay * w. With `optim.decoupled_decay` a group's `weight_decay` is
`optim.weight_decay` over the peak rate of the phase (`set_rate`), so that the peak cancels: MosaicML composer's
DecoupledAdamW.
"""

from collections.abc import Callable

import torch
from torch import nn
from torch.optim import Optimizer

from pretrain.config.settings import OptimSettings
from pretrain.optim.flat_layout import AdamW
from pretrain.optim.lamb import Group, Lamb, StableAdamW
from pretrain.optim.muon import MUON_MOMENTS, Muon

MIN_SIDE = 8
"""Fewest rows and columns of a matrix of Muon's: one of three labels' rows has nothing to orthogonalise."""


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that require a gradient, by name in model order; a tied one once, under its first name."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def parameter_groups(model: nn.Module, settings: OptimSettings) -> list[Group]:
    """Build the parameter groups of `optim.name`, some with `optim.weight_decay` and some without. Empty groups are
    left out."""
    groups = GROUPS.get(settings.name, _by_shape)(model, settings)
    if settings.decoupled_decay:
        for group in groups:
            ratio = settings.muon_lr_ratio if group.get("matrices") else 1.0  # of their peak rate to optim.lr
            group["decoupled_decay"] = group["weight_decay"] / (ratio or 1.0)
            _decouple(group, settings.lr)
    return [group for group in groups if group["params"]]


def _by_shape(model: nn.Module, settings: OptimSettings) -> list[Group]:
    """Return the tensors of two or more dimensions with decay, then the others without."""
    parameters = list(trainable_parameters(model).values())
    return [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]


def _lamb_groups(model: nn.Module, settings: OptimSettings) -> list[Group]:
    """Return those groups, or a single one with decay and trust ratios for all, depending on `optim.variant`."""
    decayed, plain = _by_shape(model, settings)
    if settings.variant == "paper":
        params = list(trainable_parameters(model).values())
        return [{"params": params, "weight_decay": settings.weight_decay, "trust": True}]
    if settings.variant == "google":  # by exclusion, not by the value of the decay
        decayed["trust"], plain["trust"] = True, False
    return [decayed, plain]


def _muon_groups(model: nn.Module, settings: OptimSettings) -> list[Group]:
    """Return Muon's matrices, and the groups by shape of the others."""
    tables = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding)}
    linear = {id(part.weight) for part in model.modules() if isinstance(part, nn.Linear)}
    hidden = linear - tables
    decayed, plain = _by_shape(model, settings)
    matrices = [p for p in decayed["params"] if id(p) in hidden and min(p.shape) >= MIN_SIDE]
    taken = set(map(id, matrices))
    decayed["params"] = [p for p in decayed["params"] if id(p) not in taken]
    first = {"params": matrices, "weight_decay": settings.weight_decay, "matrices": True}
    return [{**first, "moments": MUON_MOMENTS}, decayed, plain]


GROUPS: dict[str, Callable[[nn.Module, OptimSettings], list[Group]]] = {
    "lamb": _lamb_groups,
    "muon": _muon_groups,
}
"""How an optimizer groups parameters, where it is not by shape alone."""


def set_rate(optimizer: Optimizer, lr: float, peak: float | None) -> None:
    """Set the learning rate of the next update, and with `peak`, the phase's `optim.lr`, a decoupled decay."""
    for group in optimizer.param_groups:
        group["lr"] = lr
        if peak is not None and "decoupled_decay" in group:
            _decouple(group, peak)


def _decouple(group: Group, peak: float) -> None:
    group["weight_decay"] = group["decoupled_decay"] / peak if peak else 0.0


def _lamb(groups: list[Group], settings: OptimSettings, kernels: str) -> Optimizer:
    return Lamb(
        groups,
        lr=settings.lr,
        betas=(settings.betas[0], settings.betas[1]),
        eps=settings.eps,
        bias_correction=settings.variant != "google",
        trust_clamp=(settings.trust_clamp[0], settings.trust_clamp[1]) if settings.trust_clamp else None,
        kernels=kernels,
    )


def _stable_adamw(groups: list[Group], settings: OptimSettings, kernels: str) -> Optimizer:
    betas = (settings.betas[0], settings.betas[1])
    return StableAdamW(groups, lr=settings.lr, betas=betas, eps=settings.eps, kernels=kernels)


def _adamw(groups: list[Group], settings: OptimSettings, kernels: str) -> Optimizer:
    """Build AdamW with decoupled decay (Loshchilov & Hutter 2019). Elementwise, so it can be sharded and padded
    anywhere."""
    betas = (settings.betas[0], settings.betas[1])
    return AdamW(groups, lr=settings.lr, betas=betas, eps=settings.eps, fused=True)


def _muon(groups: list[Group], settings: OptimSettings, kernels: str) -> Optimizer:
    return Muon(
        groups,
        lr=settings.lr,
        momentum=settings.muon_momentum,
        nesterov=settings.muon_nesterov,
        iterations=settings.muon_iterations,
        rate=settings.muon_rate,
        lr_ratio=settings.muon_lr_ratio,
        dtype=torch.bfloat16 if settings.muon_precision == "bf16" else torch.float32,
        betas=(settings.betas[0], settings.betas[1]),
        eps=settings.eps,
        kernels=kernels,
    )


OPTIMIZERS: dict[str, Callable[[list[Group], OptimSettings, str], Optimizer]] = {
    "lamb": _lamb,
    "adamw": _adamw,
    "stable_adamw": _stable_adamw,
    "muon": _muon,
}


def build_optimizer(model: nn.Module, settings: OptimSettings, kernels: str = "auto") -> Optimizer:
    """Build the optimizer `optim.name` over the parameters of `model`; the engine sets its learning rate each step.
    `kernels`: `train.kernels`."""
    return OPTIMIZERS[settings.name](parameter_groups(model, settings), settings, kernels)
