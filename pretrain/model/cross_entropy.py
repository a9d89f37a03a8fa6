"""Compute the cross-entropy of a vocabulary projection, in chunks of rows.

At 30,522 words the logits are the largest tensor of a step. Here they live a few rows at a time: while a chunk
of them is hot, its softmax, its loss and its share of all three gradients are computed, and its memory is used
again. The backward pass only scales. `reference` states the same in four lines.

Shape legend: R masked rows, H hidden size, V words with padding, C rows of a chunk.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

_CHUNK_ELEMENTS = {"cpu": 1 << 22, "cuda": 1 << 26}
"""Logits alive at a time: 16 MiB on a CPU, which its last cache may hold; 256 MiB on a GPU."""
_GROUP_ELEMENTS = 1 << 25
"""Logits in half precision whose products with weights and hidden states are taken at once: 64 MiB."""


class CrossEntropy(NamedTuple):
    """Of rows with an id that is not negative; the others count nowhere."""

    loss: Tensor
    """0-d, with a gradient: -log softmax(hidden weight' + bias)[id], summed over the rows."""
    losses_R: Tensor
    """The loss of each row, without a gradient; 0 where the id is negative."""
    hits_R: Tensor
    """bool: whether the row's id has the largest logit."""
    answers_R: Tensor
    """int64: the word with the largest logit; -1 in every row where gradients are computed, which would pay for it at
    each step."""


def vocabulary_cross_entropy(
    hidden_RH: Tensor, weight_VH: Tensor, bias_V: Tensor, ids_R: Tensor, vocabulary_size: int
) -> CrossEntropy:
    """The cross-entropy of each row's id, and what the rows would have answered.

    Words from `vocabulary_size` on are padding: minus infinity in the softmax. The softmax and the sums are in float32
    (float64 for float64 input) whatever the dtype of the input. One backward pass only."""
    if torch.compiler.is_compiling():
        loss, losses_R, hits_R, *_ = _with_gradients(hidden_RH, weight_VH, bias_V, ids_R, vocabulary_size)
        return CrossEntropy(loss, losses_R, hits_R, torch.full_like(ids_R, -1))
    return CrossEntropy(
        *_VocabularyCrossEntropy.apply(
            hidden_RH, weight_VH, bias_V, ids_R, vocabulary_size, torch.is_grad_enabled()
        )
    )


def reference(
    hidden_RH: Tensor, weight_VH: Tensor, bias_V: Tensor, ids_R: Tensor, vocabulary_size: int
) -> CrossEntropy:
    """The same, plainly."""
    logits = F.linear(hidden_RH, weight_VH, bias_V)[:, :vocabulary_size]
    losses_R = F.cross_entropy(logits, ids_R, ignore_index=-1, reduction="none")
    answers_R = logits.argmax(-1)
    return CrossEntropy(losses_R.sum(), losses_R.detach(), (answers_R == ids_R) & (ids_R >= 0), answers_R)


class _Gradients(NamedTuple):
    """Of the summed loss, in the dtype of the softmax; None where nobody asks."""

    hidden_RH: Tensor | None
    weight_VH: Tensor | None
    bias_V: Tensor | None


class _VocabularyCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_RH: Tensor,
        weight_VH: Tensor,
        bias_V: Tensor,
        ids_R: Tensor,
        vocabulary_size: int,
        grad_enabled: bool,
    ) -> tuple[Tensor, ...]:
        inputs = (hidden_RH, weight_VH, bias_V)
        wanted = [grad_enabled and needed for needed in ctx.needs_input_grad[:3]]
        (loss, *rows), ctx.gradients = _by_chunks(inputs, ids_R, vocabulary_size, wanted)
        ctx.dtypes = [x.dtype for x in inputs]
        ctx.mark_non_differentiable(*rows)
        return loss, *rows

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_rows: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError(
                "the gradients of this cross-entropy have been handed over: one backward pass only"
            )
        scaled = [
            None if g is None else g.mul_(grad).to(dtype)
            for g, dtype in zip(ctx.gradients, ctx.dtypes, strict=True)
        ]
        ctx.gradients = None
        return (*scaled, None, None, None)


@torch.library.custom_op("maskmill::vocabulary_cross_entropy", mutates_args=())
def _with_gradients(
    hidden_RH: Tensor, weight_VH: Tensor, bias_V: Tensor, ids_R: Tensor, vocabulary_size: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Loss, losses and hits of the rows and the gradients of the loss, as one node that torch.compile leaves as it is:
    matrix products and in-place chunks would gain nothing from a graph. The gradients are in the dtype of the sums."""
    inputs = (hidden_RH, weight_VH, bias_V)
    result, gradients = _by_chunks(inputs, ids_R, vocabulary_size, [True] * 3)
    hidden, weight, bias = (g for g in gradients if g is not None)
    return result.loss, result.losses_R, result.hits_R, hidden, weight, bias


@_with_gradients.register_fake
def _(
    hidden_RH: Tensor, weight_VH: Tensor, bias_V: Tensor, ids_R: Tensor, vocabulary_size: int
) -> tuple[Tensor, ...]:
    dtype = _sum_dtype(hidden_RH)
    gradients = (torch.empty_like(x, dtype=dtype) for x in (hidden_RH, weight_VH, bias_V))
    losses_R, hits_R = (
        ids_R.new_empty(ids_R.shape, dtype=dtype),
        ids_R.new_empty(ids_R.shape, dtype=torch.bool),
    )
    return hidden_RH.new_empty((), dtype=dtype), losses_R, hits_R, *gradients


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output[3:])
    ctx.dtypes = [x.dtype for x in inputs[:3]]


def _scaled(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    """Rounded once, after the scaling: the scale is 1 / N of the global batch, and with fp16 its loss scale as well."""
    return *((g * grad).to(dtype) for g, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)), None, None


torch.library.register_autograd("maskmill::vocabulary_cross_entropy", _scaled, setup_context=_keep)


def _sum_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _by_chunks(
    inputs: tuple[Tensor, Tensor, Tensor], ids_R: Tensor, vocabulary_size: int, wanted: Sequence[bool]
) -> tuple[CrossEntropy, _Gradients]:
    """The cross-entropy and the gradients that are wanted, a few rows at a time."""
    hidden_RH, weight_VH, _ = inputs
    dtype, size, kind = _sum_dtype(hidden_RH), weight_VH.shape[0], hidden_RH.device.type
    gradients = _Gradients(
        *(torch.zeros_like(x, dtype=dtype) if w else None for x, w in zip(inputs, wanted, strict=True))
    )
    result = CrossEntropy(
        hidden_RH.new_zeros((), dtype=dtype),
        hidden_RH.new_zeros(len(ids_R), dtype=dtype),
        torch.zeros_like(ids_R, dtype=torch.bool),
        torch.full_like(ids_R, -1),
    )
    chunk_rows = max(1, _CHUNK_ELEMENTS.get(kind, _CHUNK_ELEMENTS["cuda"]) // size)
    # in half precision a product cannot add to sums in float32 by itself: few, large ones
    group_rows = chunk_rows if hidden_RH.dtype == dtype else max(chunk_rows, _GROUP_ELEMENTS // size)
    buffer_GV = hidden_RH.new_empty((min(group_rows, len(ids_R)), size))
    for start in range(0, len(ids_R), group_rows):
        group = slice(start, start + group_rows)
        logits_GV = _logits(inputs, group, buffer_GV)
        for first in range(0, len(logits_GV), chunk_rows):
            chunk = slice(first, first + chunk_rows)
            rows = CrossEntropy(result.loss, *(of_rows[group][chunk] for of_rows in result[1:]))
            _softmax(logits_GV[chunk], ids_R[group][chunk], inputs[2], vocabulary_size, gradients, rows)
        _add_products(logits_GV, ids_R[group] >= 0, inputs, group, gradients)
    return result, gradients


def _logits(inputs: tuple[Tensor, Tensor, Tensor], group: slice, buffer_GV: Tensor) -> Tensor:
    """Of the rows `group`, in the dtype of the input: with the bias where that is the softmax's, else without."""
    hidden_GH, weight_VH, bias_V = inputs[0][group], inputs[1], inputs[2]
    out_GV = buffer_GV[: len(hidden_GH)]
    if hidden_GH.dtype == _sum_dtype(hidden_GH):
        return torch.addmm(bias_V, hidden_GH, weight_VH.T, out=out_GV)
    return torch.mm(hidden_GH, weight_VH.T, out=out_GV)


def _softmax(
    rows_CV: Tensor,
    ids_C: Tensor,
    bias_V: Tensor,
    vocabulary_size: int,
    gradients: _Gradients,
    result: CrossEntropy,
) -> None:
    """Writes what rows of `_logits` come to into `result`, whose loss it adds to. The rows become the gradient of the
    logits, as if every row counted; the bias's is added to `gradients`."""
    dtype = _sum_dtype(rows_CV)
    logits_CV = rows_CV if rows_CV.dtype == dtype else rows_CV.to(dtype).add_(bias_V)
    counted_C, target_C1 = ids_C >= 0, ids_C.clamp(min=0)[:, None]
    logits_CV[:, vocabulary_size:] = -torch.inf
    best_C1, target_logit_C1 = logits_CV.amax(-1, keepdim=True), logits_CV.gather(1, target_C1)
    result.hits_R.copy_((target_logit_C1 == best_C1)[:, 0] & counted_C)
    if all(g is None for g in gradients):
        result.answers_R.copy_(logits_CV.argmax(-1))
    softmax_CV = torch.softmax(logits_CV, -1, out=logits_CV if logits_CV.device.type == "cpu" else None)
    # log-sum-exp from the largest probability, which is at least 1 / V and so never underflows.
    losses_C1 = best_C1 - softmax_CV.amax(-1, keepdim=True).log_() - target_logit_C1
    result.losses_R.copy_(losses_C1[:, 0].masked_fill_(~counted_C, 0.0))
    result.loss.add_(result.losses_R.sum())
    if any(g is not None for g in gradients):
        softmax_CV.scatter_add_(1, target_C1, softmax_CV.new_full((1, 1), -1.0).expand_as(target_C1))
        if gradients.bias_V is not None:
            gradients.bias_V.add_(softmax_CV.T @ counted_C.to(dtype))
        if softmax_CV.data_ptr() != rows_CV.data_ptr():
            rows_CV.copy_(softmax_CV)


def _add_products(
    error_GV: Tensor,
    counted_G: Tensor,
    inputs: tuple[Tensor, Tensor, Tensor],
    group: slice,
    gradients: _Gradients,
) -> None:
    """Adds what follows from `error_GV`, the gradient of the logits but for rows that do not count: they are left
    out of what it is multiplied with, which is a thousandth of its size."""
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
