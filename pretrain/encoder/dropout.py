"""Dropout from 16 random bits an element: activations and a rate in, activations with zeros out.

On a CPU torch draws a Bernoulli variable an element, serially: nine tenths of the cost of its dropout.
Sixteen bits of a 64-bit word decide as well, so the rate is rounded to a multiple of 2**-16 and
the survivors are scaled by the rate that was really used: the expectation stays exact.

Shape suffixes: none, every function takes any shape.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

_STEPS = 1 << 16


def keep_mask(shape: Sequence[int], rate: float) -> tuple[Tensor, float]:
    """A bool mask of `shape` on the CPU, False with probability round(rate * 2**16) / 2**16, and the factor
    1 / (1 - that probability) for the survivors. Draws from torch's global CPU generator."""
    count = torch.Size(shape).numel()
    words = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    dropped = min(round(rate * _STEPS), _STEPS - 1)
    keep = words.view(torch.int16)[:count].ge(dropped - _STEPS // 2)
    return keep.view(shape), _STEPS / (_STEPS - dropped)


class _BitDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float) -> Tensor:
        keep, ctx.scale = keep_mask(x.shape, rate)
        ctx.save_for_backward(keep)
        return torch.ops.aten.native_dropout_backward(x, keep, ctx.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (keep,) = ctx.saved_tensors
        return torch.ops.aten.native_dropout_backward(grad, keep, ctx.scale), None


def dropout(x: Tensor, rate: float, training: bool) -> Tensor:
    """`x` with each element zeroed at `rate` and the others scaled up, while training; else `x` itself.
    Same shape and dtype. Draws from the global generator of x's device, so that activation checkpointing,
    which restores that generator, draws the same mask again."""
    if not training or rate == 0.0:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, rate)
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
