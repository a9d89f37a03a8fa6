"""Apply dropout from 16 random bits per element, and make functions operators that torch.compile leaves whole.

On a CPU torch draws one Bernoulli variable per element, serially: 90% of the cost of its dropout. Here 16 bits of a
64-bit word decide, so the rate is rounded to a multiple of 2**-16. Survivors are scaled by the rounded rate, which
keeps the expectation exact.

Operators are made as torch.library.custom_op makes them, but without the wrapper that it puts around a function: the
wrapper imports torch.compile at the first call, whether anything is compiled or not, which takes more than a second
on each rank.

Shape suffixes: none, every function takes any shape.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

NAMESPACE = "maskmill"
AnyFunction = TypeVar("AnyFunction", bound=Callable[..., object])


def operator(name: str, *tags: torch.Tag) -> Callable[[AnyFunction], AnyFunction]:
    """Decorate a function of new outputs, which changes no input, as the operator `maskmill::name` for every device.
    Its shapes are told by torch.library.register_fake, and its backward pass by torch.library.register_autograd."""

    def register(function: AnyFunction) -> AnyFunction:
        schema = torch.library.infer_schema(function, mutates_args=())
        qualified = f"{NAMESPACE}::{name}"
        torch.library.define(qualified, schema, tags=(torch.Tag.pt2_compliant_tag, *tags))
        torch.library.impl(qualified, "default", function)
        made: AnyFunction = getattr(getattr(torch.ops, NAMESPACE), name).default
        return made

    return register


_STEPS = 1 << 16


def keep_mask(shape: Sequence[int], rate: float) -> tuple[Tensor, float]:
    """Draw a bool mask of `shape` on the CPU, False with probability round(rate * 2**16) / 2**16; also return the
    factor 1 / (1 - that probability) for the survivors. Draws from torch's global CPU generator."""
    keep = torch.empty(shape, dtype=torch.bool)
    fill_keep_mask(keep, rate)
    return keep, survivors_scale(rate)


def fill_keep_mask(keep: Tensor, rate: float) -> None:
    """Redraw the contiguous bool mask `keep`. NumPy compares 16-bit integers ten times as fast as torch."""
    count = keep.numel()
    words = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    drawn = words.numpy().view(np.int16)[:count]
    np.greater_equal(drawn, _zeroed(rate) - _STEPS // 2, out=keep.numpy().reshape(-1))


def survivors_scale(rate: float) -> float:
    """Return the factor for elements that dropout keeps."""
    return _STEPS / (_STEPS - _zeroed(rate))


def _zeroed(rate: float) -> int:
    return min(round(rate * _STEPS), _STEPS - 1)


def dropped(x: Tensor, keep: Tensor, scale: float) -> Tensor:
    """Return `x` times `scale` where `keep`, 0 elsewhere. Multiplies by bytes: with a bool mask torch takes four
    times as long, and torch's own backward pass of dropout makes the mask a tensor of x's dtype first."""
    return (x * keep.view(torch.uint8)).mul_(scale)


@operator("keep_mask", torch.Tag.nondeterministic_seeded)
def _keep_mask_like(x: Tensor, rate: float) -> Tensor:
    """Draw a `keep_mask` of x's shape, as an op opaque to torch.compile, whose own code would draw serially."""
    return keep_mask(x.shape, rate)[0]


@torch.library.register_fake("maskmill::keep_mask")
def _(x: Tensor, rate: float) -> Tensor:
    return x.new_empty(x.shape, dtype=torch.bool)


class _BitDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float) -> Tensor:
        keep, ctx.scale = keep_mask(x.shape, rate)
        ctx.save_for_backward(keep)
        return dropped(x, keep, ctx.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (keep,) = ctx.saved_tensors
        return dropped(grad, keep, ctx.scale), None


def dropout(x: Tensor, rate: float, training: bool) -> Tensor:
    """Zero each element of `x` at `rate` and scale up the others, while training; else return `x` itself. Same
    shape and dtype. Draws from the global generator of x's device, so that activation checkpointing, which restores
    that generator, draws the same mask again."""
    if not training or rate == 0.0:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, rate)
    if torch.compiler.is_compiling():
        return x * _keep_mask_like(x.detach(), rate) * survivors_scale(rate)
    return _BitDropout.apply(x, rate)


class Dropout(nn.Module):
    """`dropout` as a module."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.rate, self.training)

    def extra_repr(self) -> str:
        return f"rate={self.rate}"
