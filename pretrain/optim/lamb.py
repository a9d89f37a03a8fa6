"""Update flat tensors with LAMB or StableAdamW: by Adam's direction times one factor per parameter in them.

The factor is LAMB's trust ratio, or StableAdamW's clipping by RMS. Under ZeRO a rank holds flat slices of many
parameters. Goal: the update of a single process that sees whole tensors, on every rank, exact at every stage. Phases
of `FlatOptimizer.step`:

    1. one pass over each flat tensor: moments, the update u written over the gradient, and two sums per segment (see
       `Sums`); padding is in no segment and is unchanged;
    2. one small float64 all-reduce adds the sums per parameter over ranks; a subclass turns them into factors;
    3. one pass: w <- w - lr * factor * u, where u includes the weight decay.

The two passes are here in plain torch, and in lamb_triton.py as kernels for CUDA.
"""

import importlib.util
import math
import os
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from data_pipeline.errors import UserError
from pretrain.config.settings import OptimSettings
from pretrain.optim.base import BaseOptimizer, Group, by_shape, trainable_parameters
from pretrain.optim.flat_layout import (
    TINY,
    Coefficients,
    Layout,
    Passes,
    Sharding,
    Sums,
    squared_norm,
    whole,
)

# The two passes over a flat tensor, in plain torch:
#
#     sums = passes.update(...)       moments; the update u in the gradient's place; two sums by parameter (see Sums)
#     passes.apply(...)               w <- w - lr * ratio * u, once the ratios are known
#
# Torch reads and writes memory for each operation; the kernels of lamb_triton.py touch each element once per pass.
# `choose` selects between them. In both, padding (elements in no segment of the layout) is excluded from the norms,
# and its zero weights and moments stay zero for any gradient. Both sum squares in fp32 over at most a few thousand
# elements, then in float64, so that norms are accurate to about 1e-7 for any tensor length and any sharding.


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


# What LAMB, StableAdamW and Muon share: layouts, and the phases of a step.


class FlatOptimizer(BaseOptimizer):
    """AdamW by the two passes; subclasses set `sums_of` and `factors`.

    `step` overwrites the gradients with the updates. State per tensor: `exp_avg`, `exp_avg_sq`, and `step`, its
    number of updates so far.
    """

    def __init__(self, params: Iterable[Any], settings: OptimSettings, kernels: str = "auto") -> None:
        """Set up the groups. `kernels`: see `choose`."""
        super().__init__(params, settings)
        self._bias_correction, self._kernels = True, kernels
        self._sharding: Sharding | None = None
        self._latest: dict[int, tuple[tuple[str, ...], Tensor]] = {}
        """Names and factors of the last update, by id of the tensor."""

    def use_sharding(self, sharding: Sharding) -> None:
        """Update flat tensors that are cut so, from the next step on."""
        self._sharding = sharding
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
        if self._sharding is not None:
            return self._sharding.layout_of(tensor)
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
        if (
            self._sharding is not None
            and self._sharding.collectives.size > 1
            and any(layout.split for layout, own in tensors if own is not None)
        ):
            self._sharding.collectives.add(sums)
        parts = iter(self.factors(sums).split([own.shape[1] for own in given]))
        return [None if own is None else next(parts) for _, own in tensors]


class Lamb(FlatOptimizer):
    """LAMB: Adam's direction times a trust ratio of each parameter.

    You et al. 2020, "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes". Weight decay is inside
    the update. Three variants are in use (`optim.variant`):

    | variant | bias correction | biases and LayerNorm                | code                       |
    |---------|-----------------|-------------------------------------|----------------------------|
    | nvidia  | yes             | no decay, trust ratio 1             | apex, DeepLearningExamples |
    | google  | no              | no decay, trust ratio 1             | google-research/albert     |
    | paper   | yes             | decay and trust ratio as all others | Algorithm 2                |

    A trust ratio is 1 if either norm is 0. The engine clips by the global gradient norm before the moments; NVIDIA's
    kernel does the same inside the optimizer.
    """

    def __init__(self, params: Iterable[Any], settings: OptimSettings, kernels: str = "auto") -> None:
        """Set up LAMB. A group has trust ratios if `trust` is True, or if `trust` is absent and it has weight
        decay."""
        super().__init__(params, settings, kernels)
        for group in self.param_groups:
            group.setdefault("trust", group["weight_decay"] != 0)
        self._bias_correction = settings.variant != "google"
        self._trust_clamp = settings.trust_clamp

    @classmethod
    def groups(cls, model: nn.Module, settings: OptimSettings) -> list[Group]:
        """Return the groups by shape; in the paper's variant, which excludes nothing, one with decay and trust ratios
        for all."""
        decayed, plain = by_shape(model, settings)
        if settings.variant == "paper":
            params = list(trainable_parameters(model).values())
            return [{"params": params, "weight_decay": settings.weight_decay, "trust": True}]
        if settings.variant == "google":  # by exclusion, not by the value of the decay
            decayed["trust"], plain["trust"] = True, False
        return [decayed, plain]

    def sums_of(self, group: Group) -> Sums:
        """Return the norms where there are trust ratios."""
        return Sums.NORMS if group["trust"] else Sums.NONE

    def factors(self, sums: Tensor) -> Tensor:
        """Compute ||w|| / ||u|| per parameter, 1 if either norm is 0."""
        weights, updates = sums.sqrt()
        ratios = torch.where((weights > 0) & (updates > 0), weights / updates, torch.ones_like(weights))
        if not self._trust_clamp:
            return ratios
        least, largest = self._trust_clamp
        return ratios.clamp(least, largest)

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


class StableAdamW(FlatOptimizer):
    """StableAdamW: AdamW whose rate is lowered where the second moment lags behind the gradient.

    Wortsman et al. 2023, "Stable and low-precision training for large-scale vision-language models" (arXiv 2304.13013),
    Algorithm 2. For each parameter tensor, with v after this step's update and both moments bias-corrected:

        RMS = sqrt(mean(g^2 / max(v, eps^2)))
        rate = lr / max(1, RMS)
        w <- w - rate * (m / (sqrt(v) + eps) + weight_decay * w)

    As in the paper every tensor is treated, biases included, and the decay is lowered with the rate. The paper corrects
    the bias by betas that grow from 0; the corrected moments are the same.
    """

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
