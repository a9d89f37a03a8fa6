"""Multiply by weights in FP8 on GPUs that can, with sums and results as before.

After Micikevicius et al. 2022, "FP8 formats for deep learning" (arXiv 2209.05433), sections 3 and 4: values and weights
in E4M3, gradients in E5M2, each tensor with a scale of its own, here from its own largest magnitude and not from those
of steps before (Transformer Engine's "current scaling"). Weights, their gradients and all that is no product stay as
they are. `train.precision=fp8` uses it.

Shape legend: T packed tokens, K inputs and N outputs of a layer.
"""

from typing import Any

import torch
from torch import Tensor, nn

from pretrain.model.layers import Layer

VALUES, GRADIENTS = torch.float8_e4m3fn, torch.float8_e5m2
MULTIPLE = 16
"""Rows and columns of a product in FP8 are a multiple of this."""
TINY = 1e-12
"""A tensor whose largest magnitude is below has the scale of this one: zeros stay zeros."""


class Fp8Linear(nn.Linear):
    """A Linear layer that multiplies in FP8, forward and backward; where a size is no multiple of 16, in its dtype."""

    def forward(self, x: Tensor) -> Tensor:
        """Compute (..., N) of (..., K), in the dtype of `x`."""
        rows = x.numel() // x.shape[-1]
        if rows % MULTIPLE or self.in_features % MULTIPLE or self.out_features % MULTIPLE:
            return super().forward(x)
        product = _Product.apply(x.reshape(rows, -1), self.weight)
        product = product if self.bias is None else product + self.bias
        return product.unflatten(0, x.shape[:-1])


def use_fp8(model: nn.Module) -> int:
    """Let the Linear layers of every encoder layer in `model` multiply in FP8; return how many do. Their parameters and
    names stay. Heads and embeddings, whose errors no later layer evens out, stay as they are."""
    parts = (part for layer in model.modules() if isinstance(layer, Layer) for part in layer.modules())
    linears = {id(part): part for part in parts if type(part) is nn.Linear}
    for linear in linears.values():
        linear.__class__ = Fp8Linear
    return len(linears)


class _Product(torch.autograd.Function):
    """x_TK @ w_NK.T"""

    @staticmethod
    def forward(ctx: Any, x_TK: Tensor, w_NK: Tensor) -> Tensor:
        x8_TK, x_scale = in_fp8(x_TK, VALUES)
        w8_NK, w_scale = in_fp8(w_NK, VALUES)
        ctx.save_for_backward(x8_TK, x_scale, w_NK)
        # summed in fewer bits, as Transformer Engine does forward alone
        return multiply(x8_TK, w8_NK.t(), x_scale, w_scale, x_TK.dtype, fast=True)

    @staticmethod
    def backward(ctx: Any, grad_TN: Tensor) -> tuple[Tensor, Tensor]:
        x8_TK, x_scale, w_NK = ctx.saved_tensors
        dtype = grad_TN.dtype
        g8_TN, g_scale = in_fp8(grad_TN, GRADIENTS)
        w8_NK, w_scale = in_fp8(w_NK, VALUES)
        by_column = w8_NK.t().contiguous().t()
        grad_x_TK = multiply(g8_TN, by_column, g_scale, w_scale, dtype, fast=False)
        g8_NT, x8_by_column = g8_TN.t().contiguous(), x8_TK.t().contiguous().t()
        grad_w_NK = multiply(g8_NT, x8_by_column, g_scale, x_scale, dtype, fast=False)
        return grad_x_TK, grad_w_NK


def in_fp8(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return `x` in FP8, scaled so that its largest magnitude is the largest of `dtype`, and what to multiply it by to
    have it back: fp32, one number."""
    largest = torch.finfo(dtype).max
    scale = x.abs().amax().float().clamp(min=TINY) / largest
    return (x.float() / scale).clamp(-largest, largest).to(dtype), scale


def multiply(
    a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, dtype: torch.dtype, *, fast: bool
) -> Tensor:
    """Return the product in `dtype` of two scaled matrices in FP8: `a` by rows, `b` by columns in memory."""
    return torch._scaled_mm(a, b, a_scale, b_scale, out_dtype=dtype, use_fast_accum=fast)
