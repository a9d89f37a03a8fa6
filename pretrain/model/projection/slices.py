"""Project rows to the vocabulary in chunks, and compute a loss and its gradients per chunk.

At 30,522 words the logits are the largest tensor of a step. Here only a chunk of rows exists at a time: a loss
turns the chunk into its own gradient, from which its share of all three gradients is computed, and the memory is
reused. The backward pass only scales.

Shape legend: R projected rows, H hidden size, V words with padding, C rows of a chunk, G rows of a group of chunks.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK_ELEMENTS = {"cpu": 1 << 22, "cuda": 1 << 26}
"""Logits alive at a time: 16 MiB on a CPU, which its last cache may hold; 256 MiB on a GPU."""
GROUP_ELEMENTS = 1 << 25
"""Logits in half precision whose products with weights and hidden states are taken at once: 64 MiB."""

Inputs = tuple[Tensor, Tensor, Tensor]
"""Hidden states (R, H), weight (V, H) and bias (V,) of a projection."""


class Gradients(NamedTuple):
    """Gradients of the summed loss, in the dtype of the softmax; None if not requested."""

    hidden_RH: Tensor | None
    weight_VH: Tensor | None
    bias_V: Tensor | None

    @property
    def asked(self) -> bool:
        """Return whether any gradient is requested."""
        return any(g is not None for g in self)


Visit = Callable[[Tensor, slice, Gradients], None]
"""Adds the loss of the rows in a slice to what it collects, and, where gradients are asked for, adds its share to the
bias's and turns the logits (C, V) that it is given into their gradient, as if every row counted."""


def project(inputs: Inputs, counted_R: Tensor, wanted: Sequence[bool], visit: Visit) -> Gradients:
    """Pass the logits of all rows to `visit` in chunks, and return the `wanted` gradients of hidden states, weight
    and bias. Rows that are not `counted_R` (bool) are excluded from them.

    Logits come in the dtype of the hidden states: with the bias where that is `sum_dtype`, else without."""
    hidden_RH, weight_VH, _ = inputs
    dtype, size, kind = sum_dtype(hidden_RH), weight_VH.shape[0], hidden_RH.device.type
    gradients = Gradients(
        *(torch.zeros_like(x, dtype=dtype) if w else None for x, w in zip(inputs, wanted, strict=True))
    )
    rows = len(hidden_RH)
    chunk_rows = max(1, CHUNK_ELEMENTS.get(kind, CHUNK_ELEMENTS["cuda"]) // size)
    # in half precision a product cannot add to sums in float32 by itself: few, large ones
    group_rows = chunk_rows if hidden_RH.dtype == dtype else max(chunk_rows, GROUP_ELEMENTS // size)
    buffer_GV = hidden_RH.new_empty((min(group_rows, rows), size))
    for start in range(0, rows, group_rows):
        group = slice(start, min(start + group_rows, rows))
        logits_GV = _logits(inputs, group, buffer_GV)
        for first in range(group.start, group.stop, chunk_rows):
            chunk = slice(first, min(first + chunk_rows, group.stop))
            visit(logits_GV[first - start : chunk.stop - start], chunk, gradients)
        _add_products(logits_GV, counted_R[group], inputs, group, gradients)
    return gradients


def sum_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of softmaxes and sums over logits of the dtype of `x`."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _logits(inputs: Inputs, group: slice, buffer_GV: Tensor) -> Tensor:
    hidden_GH, weight_VH, bias_V = inputs[0][group], inputs[1], inputs[2]
    out_GV = buffer_GV[: len(hidden_GH)]
    if hidden_GH.dtype == sum_dtype(hidden_GH):
        return torch.addmm(bias_V, hidden_GH, weight_VH.T, out=out_GV)
    return torch.mm(hidden_GH, weight_VH.T, out=out_GV)


def _add_products(
    error_GV: Tensor, counted_G: Tensor, inputs: Inputs, group: slice, gradients: Gradients
) -> None:
    """Add the products of `error_GV`, the gradient of the logits but for rows that do not count: they are left out
    of what it is multiplied with, which is a thousandth of its size."""
    hidden_GH, weight_VH, _ = inputs[0][group], inputs[1], inputs[2]
    counted_G1 = counted_G[:, None].to(hidden_GH.dtype)
    if gradients.hidden_RH is not None:
        gradients.hidden_RH[group] = (error_GV @ weight_VH).mul_(counted_G1)
    if gradients.weight_VH is not None:
        hidden_GH = hidden_GH * counted_G1
        if error_GV.dtype == gradients.weight_VH.dtype:
            gradients.weight_VH.addmm_(error_GV.T, hidden_GH)
        else:
            gradients.weight_VH.add_(error_GV.T @ hidden_GH)


class EarlyGradients(torch.autograd.Function):
    """A loss whose gradients are computed together with it: the backward pass scales them, once.

    `compute` takes the projection's inputs and which of their gradients are wanted, and returns (loss, what is known
    of each row, ...) and the Gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_RH: Tensor,
        weight_VH: Tensor,
        bias_V: Tensor,
        compute: Callable[[Inputs, Sequence[bool]], tuple[Sequence[Tensor], Gradients]],
        grad_enabled: bool,
    ) -> tuple[Tensor, ...]:
        inputs = (hidden_RH, weight_VH, bias_V)
        wanted = [grad_enabled and needed for needed in ctx.needs_input_grad[:3]]
        (loss, *rows), ctx.gradients = compute(inputs, wanted)
        ctx.dtypes = [x.dtype for x in inputs]
        ctx.mark_non_differentiable(*rows)
        return loss, *rows

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_rows: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError("the gradients of this loss have been handed over: one backward pass only")
        scaled = [
            None if g is None else g.mul_(grad).to(dtype)
            for g, dtype in zip(ctx.gradients, ctx.dtypes, strict=True)
        ]
        ctx.gradients = None
        return (*scaled, None, None)


# For torch.compile a loss is a custom operation, one node that it leaves as it is: matrix products and in-place chunks
# would gain nothing from a graph. Its last three results are the gradients, in the dtype of the sums.


def empty_gradients(inputs: Inputs) -> tuple[Tensor, ...]:
    """Return gradients without values, for such an operation's fake."""
    return tuple(torch.empty_like(x, dtype=sum_dtype(inputs[0])) for x in inputs)


def keep_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Set up the backward pass of such an operation, whose first three arguments are the projection's inputs."""
    ctx.save_for_backward(*output[-3:])
    ctx.dtypes, ctx.others = [x.dtype for x in inputs[:3]], len(inputs) - 3


def scale_gradients(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    """Run the backward pass of such an operation, whose first result is the loss. Rounded once, after the scaling:
    the scale is 1 / N of the global batch, and with fp16 its loss scale as well."""
    scaled = ((g * grad).to(dtype) for g, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True))
    return *scaled, *[None] * ctx.others
