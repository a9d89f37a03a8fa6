"""Compute the cross-entropy of a vocabulary projection, in slices of rows. `reference` states the same in four lines.

Shape legend: R masked rows, H hidden size, V words with padding, C rows of a chunk.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from pretrain.model.operators import operator
from pretrain.model.projection.slices import (
    EarlyGradients,
    Gradients,
    Inputs,
    empty_gradients,
    keep_gradients,
    project,
    scale_gradients,
    sum_dtype,
)


class CrossEntropy(NamedTuple):
    """Results over rows with a non-negative id; others are not counted."""

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
    """Compute the cross-entropy of each row's id, and the rows' predictions.

    Words from `vocabulary_size` on are padding: minus infinity in the softmax. The softmax and the sums are in float32
    (float64 for float64 input) for any dtype of the input. One backward pass only."""
    if torch.compiler.is_compiling():
        loss, losses_R, hits_R, *_ = _with_gradients(hidden_RH, weight_VH, bias_V, ids_R, vocabulary_size)
        return CrossEntropy(loss, losses_R, hits_R, torch.full_like(ids_R, -1))
    compute = partial(_compute, ids_R, vocabulary_size)
    return CrossEntropy(*EarlyGradients.apply(hidden_RH, weight_VH, bias_V, compute, torch.is_grad_enabled()))


def reference(
    hidden_RH: Tensor, weight_VH: Tensor, bias_V: Tensor, ids_R: Tensor, vocabulary_size: int
) -> CrossEntropy:
    """Compute the same without slices."""
    logits = F.linear(hidden_RH, weight_VH, bias_V)[:, :vocabulary_size]
    losses_R = F.cross_entropy(logits, ids_R, ignore_index=-1, reduction="none")
    answers_R = logits.argmax(-1)
    return CrossEntropy(losses_R.sum(), losses_R.detach(), (answers_R == ids_R) & (ids_R >= 0), answers_R)


@operator("vocabulary_cross_entropy")
def _with_gradients(
    hidden_RH: Tensor, weight_VH: Tensor, bias_V: Tensor, ids_R: Tensor, vocabulary_size: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute loss, losses and hits of the rows and the gradients of the loss."""
    found, gradients = _compute(ids_R, vocabulary_size, (hidden_RH, weight_VH, bias_V), [True] * 3)
    hidden, weight, bias = (g for g in gradients if g is not None)
    return found.loss, found.losses_R, found.hits_R, hidden, weight, bias


@torch.library.register_fake("maskmill::vocabulary_cross_entropy")
def _(
    hidden_RH: Tensor, weight_VH: Tensor, bias_V: Tensor, ids_R: Tensor, vocabulary_size: int
) -> tuple[Tensor, ...]:
    found = _nothing_yet(hidden_RH, ids_R)
    return (*found[:3], *empty_gradients((hidden_RH, weight_VH, bias_V)))


torch.library.register_autograd(
    "maskmill::vocabulary_cross_entropy", scale_gradients, setup_context=keep_gradients
)


def _nothing_yet(hidden_RH: Tensor, ids_R: Tensor) -> CrossEntropy:
    dtype = sum_dtype(hidden_RH)
    return CrossEntropy(
        hidden_RH.new_zeros((), dtype=dtype),
        hidden_RH.new_zeros(ids_R.shape, dtype=dtype),
        torch.zeros_like(ids_R, dtype=torch.bool),
        torch.full_like(ids_R, -1),
    )


def _compute(
    ids_R: Tensor, vocabulary_size: int, inputs: Inputs, wanted: Sequence[bool]
) -> tuple[CrossEntropy, Gradients]:
    """Compute the cross-entropy and the requested gradients."""
    found = _nothing_yet(inputs[0], ids_R)

    def visit(logits_CV: Tensor, chunk: slice, gradients: Gradients) -> None:
        rows = CrossEntropy(found.loss, *(of_rows[chunk] for of_rows in found[1:]))
        _softmax(logits_CV, ids_R[chunk], inputs[2], vocabulary_size, gradients, rows)

    return found, project(inputs, ids_R >= 0, wanted, visit)


def _softmax(
    rows_CV: Tensor,
    ids_C: Tensor,
    bias_V: Tensor,
    vocabulary_size: int,
    gradients: Gradients,
    result: CrossEntropy,
) -> None:
    """Write the results of rows of logits into `result` and add to its loss. The rows become the gradient of the
    logits, as if every row counted; the bias's is added to `gradients`."""
    dtype = sum_dtype(rows_CV)
    logits_CV = rows_CV if rows_CV.dtype == dtype else rows_CV.to(dtype).add_(bias_V)
    counted_C, target_C1 = ids_C >= 0, ids_C.clamp(min=0)[:, None]
    logits_CV[:, vocabulary_size:] = -torch.inf
    best_C1, target_logit_C1 = logits_CV.amax(-1, keepdim=True), logits_CV.gather(1, target_C1)
    result.hits_R.copy_((target_logit_C1 == best_C1)[:, 0] & counted_C)
    if not gradients.asked:
        result.answers_R.copy_(logits_CV.argmax(-1))
    softmax_CV = torch.softmax(logits_CV, -1, out=logits_CV if logits_CV.device.type == "cpu" else None)
    # log-sum-exp from the largest probability, which is at least 1 / V and so never underflows.
    losses_C1 = best_C1 - softmax_CV.amax(-1, keepdim=True).log_() - target_logit_C1
    result.losses_R.copy_(losses_C1[:, 0].masked_fill_(~counted_C, 0.0))
    result.loss.add_(result.losses_R.sum())
    if gradients.asked:
        softmax_CV.scatter_add_(1, target_C1, softmax_CV.new_full((1, 1), -1.0).expand_as(target_C1))
        if gradients.bias_V is not None:
            gradients.bias_V.add_(softmax_CV.T @ counted_C.to(dtype))
        if softmax_CV.data_ptr() != rows_CV.data_ptr():
            rows_CV.copy_(softmax_CV)
