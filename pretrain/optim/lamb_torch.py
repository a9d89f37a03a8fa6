"""Compute the two passes of LAMB and StableAdamW over a flat tensor in plain torch.

    sums = passes.update(...)       moments; the update u in the gradient's place; two sums by parameter (see Sums)
    passes.apply(...)               w <- w - lr * ratio * u, once the ratios are known

Torch reads and writes memory for each operation; lamb_triton.py has the same two passes as kernels that touch each
element once per pass. `choose` selects between them. In both, padding (elements in no segment of the layout) is
excluded from the norms, and its zero weights and moments stay zero for any gradient. Both sum squares in fp32 over
at most a few thousand elements, then in float64, so that norms are accurate to about 1e-7 for any tensor length and
any sharding.
"""

import importlib.util
import math
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from data_pipeline.errors import UserError
from pretrain.optim.flat_layout import TINY, Coefficients, Layout, Passes, Sums, squared_norm


def coefficients(group: dict[str, Any], updates: int, bias_correction: bool) -> Coefficients:
    """Compute the coefficients of a group's update number `updates`, counted from 1."""
    beta1, beta2 = group["betas"]
    steps = updates if bias_correction else math.inf  # beta^inf = 0: no correction
    root = math.sqrt(1 - beta2**steps)
    return Coefficients(beta1, beta2, group["eps"] * root, root / (1 - beta1**steps), group["weight_decay"])


def update(
    weights: Tensor,
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    layout: Layout,
    numbers: Coefficients,
    sums: Sums,
) -> Tensor | None:
    """Compute moments and the update, see Passes. Sets the gradient of the padding to zero."""
    for start, length in layout.padding():
        gradient.view(-1)[start : start + length].zero_()
    first.lerp_(gradient, 1 - numbers.beta1)
    second.mul_(numbers.beta2).addcmul_(gradient, gradient, value=1 - numbers.beta2)
    found = None
    if sums == Sums.RMS:  # before the update takes the gradient's place
        found = _rms_sums(gradient.view(-1), second.view(-1), layout, numbers.eps)
    torch.sqrt(second, out=gradient)
    gradient.add_(numbers.eps)
    torch.div(first, gradient, out=gradient)
    gradient.mul_(numbers.scale)
    if numbers.weight_decay != 0:
        gradient.add_(weights, alpha=numbers.weight_decay)
    if sums == Sums.NORMS:
        found = _squared_norms(weights.view(-1), gradient.view(-1), layout)
    return found


def apply(weights: Tensor, update: Tensor, layout: Layout, ratios: Tensor | None, lr: float) -> None:
    """Apply the update, see Passes."""
    if ratios is not None:
        values, scale = update.view(-1), ratios.to(update.dtype)
        for segment in layout.segments:
            values[segment.start : segment.start + segment.length].mul_(scale[segment.parameter])
    weights.add_(update, alpha=-lr)


TORCH = Passes(update, apply)


def choose(tensor: Tensor, kind: str = "auto") -> Passes:
    """Choose the passes for a flat tensor: Triton's for fp32 on CUDA if triton is installed (with `triton` also on
    a CPU in interpreter mode), else torch's, for example for an offloaded optimizer."""
    if kind == "torch" or tensor.dtype != torch.float32:
        return TORCH
    if has_triton() and (tensor.is_cuda or (kind == "triton" and _interpreted())):
        from pretrain.optim.lamb_triton import TRITON  # optional, and slow to import

        return TRITON
    return TORCH


def name(device: torch.device, kind: str) -> str:
    """Return which passes run on this device under `train.kernels=kind`: "triton" or "torch"."""
    found = choose(torch.empty(0, device=device), kind)
    return "torch" if found is TORCH else "triton"


def _interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


def has_triton() -> bool:
    """Return whether triton, an optional dependency, is installed."""
    return importlib.util.find_spec("triton") is not None


def check_kernels(kind: str, device: torch.device) -> None:
    """Raise UserError for `train.kernels=triton` where Triton's kernels cannot run."""
    if kind != "triton":
        return
    if not has_triton():
        raise UserError(
            "train.kernels=triton, and triton is not installed",
            where="settings",
            remedy="pip install 'maskmill[gpu]', or train.kernels=auto",
        )
    if device.type != "cuda" and not _interpreted():
        raise UserError(
            "train.kernels=triton needs a CUDA device",
            where="settings",
            remedy="train.kernels=auto, or TRITON_INTERPRET=1 to have them interpreted, slowly",
        )


def _squared_norms(weights: Tensor, update: Tensor, layout: Layout) -> Tensor:
    def of_piece(piece: slice) -> Tensor:
        return torch.stack((squared_norm(weights[piece]), squared_norm(update[piece])))

    return _by_parameter(layout, weights.device, of_piece)


def _rms_sums(gradient: Tensor, second: Tensor, layout: Layout, eps: float) -> Tensor:
    def of_piece(piece: slice) -> Tensor:
        scaled = gradient[piece] / second[piece].clamp(min=max(eps * eps, TINY)).sqrt_()
        return torch.stack((squared_norm(scaled), scaled.new_tensor(len(scaled), dtype=torch.float64)))

    return _by_parameter(layout, gradient.device, of_piece)


def _by_parameter(layout: Layout, device: torch.device, of_piece: Callable[[slice], Tensor]) -> Tensor:
    """Add two sums of each segment (2,) by parameter: (2, parameters) float64."""
    here: list[list[Tensor]] = [[] for _ in layout.names]
    for segment in layout.segments:
        here[segment.parameter].append(of_piece(slice(segment.start, segment.start + segment.length)))
    nothing = torch.zeros(2, dtype=torch.float64, device=device)
    columns = [sum(parts, nothing) for parts in here]
    return torch.stack(columns, dim=1) if columns else nothing.new_zeros(2, 0)
