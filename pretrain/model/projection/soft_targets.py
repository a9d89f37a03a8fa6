"""Compute the divergence of a vocabulary projection from a teacher's, in slices of rows. `reference` states the same
plainly.

Shape legend: R rows, H hidden size, K the teacher's, V words with padding, W words without, C rows of a chunk.
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


class Targets(NamedTuple):
    """What a projection is to resemble: the teacher's, which gets no gradient, and in which rows."""

    hidden_RK: Tensor
    weight_VK: Tensor
    bias_V: Tensor
    counted_R: Tensor
    """bool"""
    vocabulary_size: int
    """Words from here on are padding: minus infinity in both softmaxes."""
    temperature: float
    """What the logits of both are divided by."""


class SoftTargets(NamedTuple):
    """Results over the counted rows."""

    loss: Tensor
    """0-d, with a gradient: the Kullback-Leibler divergence of the student's softmax from the teacher's, both softened,
    times temperature squared, summed over the rows."""
    agreements_R: Tensor
    """bool: whether both have their largest logit at the same word."""


def soft_targets(hidden_RH: Tensor, weight_VH: Tensor, bias_V: Tensor, targets: Targets) -> SoftTargets:
    """Compute the divergence of softmax(hidden weight' + bias) from the teacher's (Hinton et al. 2015, section 2;
    Sanh et al. 2019): T squared keeps the size of its gradient independent of the temperature T.

    Softmax and sums are in float32 (float64 for float64 input). One backward pass only."""
    if torch.compiler.is_compiling():
        loss, agreements_R, *_ = _with_gradients(hidden_RH, weight_VH, bias_V, *targets)
        return SoftTargets(loss, agreements_R)
    compute = partial(_compute, targets)
    return SoftTargets(*EarlyGradients.apply(hidden_RH, weight_VH, bias_V, compute, torch.is_grad_enabled()))


def reference(hidden_RH: Tensor, weight_VH: Tensor, bias_V: Tensor, targets: Targets) -> SoftTargets:
    """Compute the same without slices."""
    size, temperature = targets.vocabulary_size, targets.temperature
    student_RW = F.linear(hidden_RH, weight_VH, bias_V)[:, :size]
    teacher_RW = F.linear(targets.hidden_RK, targets.weight_VK, targets.bias_V)[:, :size]
    losses_RW = F.kl_div(
        (student_RW / temperature).log_softmax(-1), (teacher_RW / temperature).softmax(-1), reduction="none"
    )
    counted_R = targets.counted_R
    return SoftTargets(
        losses_RW.sum(-1)[counted_R].sum() * temperature**2,
        (student_RW.argmax(-1) == teacher_RW.argmax(-1)) & counted_R,
    )


@operator("soft_targets")
def _with_gradients(
    hidden_RH: Tensor,
    weight_VH: Tensor,
    bias_V: Tensor,
    teacher_hidden_RK: Tensor,
    teacher_weight_VK: Tensor,
    teacher_bias_V: Tensor,
    counted_R: Tensor,
    vocabulary_size: int,
    temperature: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute loss and agreements of the rows and the gradients of the loss."""
    targets = Targets(
        teacher_hidden_RK, teacher_weight_VK, teacher_bias_V, counted_R, vocabulary_size, temperature
    )
    found, gradients = _compute(targets, (hidden_RH, weight_VH, bias_V), [True] * 3)
    hidden, weight, bias = (g for g in gradients if g is not None)
    return found.loss, found.agreements_R, hidden, weight, bias


@torch.library.register_fake("maskmill::soft_targets")
def _(
    hidden_RH: Tensor,
    weight_VH: Tensor,
    bias_V: Tensor,
    teacher_hidden_RK: Tensor,
    teacher_weight_VK: Tensor,
    teacher_bias_V: Tensor,
    counted_R: Tensor,
    vocabulary_size: int,
    temperature: float,
) -> tuple[Tensor, ...]:
    return (*_nothing_yet(hidden_RH, counted_R), *empty_gradients((hidden_RH, weight_VH, bias_V)))


torch.library.register_autograd("maskmill::soft_targets", scale_gradients, setup_context=keep_gradients)


def _nothing_yet(hidden_RH: Tensor, counted_R: Tensor) -> SoftTargets:
    return SoftTargets(hidden_RH.new_zeros((), dtype=sum_dtype(hidden_RH)), torch.zeros_like(counted_R))


def _compute(targets: Targets, inputs: Inputs, wanted: Sequence[bool]) -> tuple[SoftTargets, Gradients]:
    """Compute the divergence and the requested gradients."""
    found = _nothing_yet(inputs[0], targets.counted_R)

    def visit(logits_CV: Tensor, chunk: slice, gradients: Gradients) -> None:
        rows = targets._replace(hidden_RK=targets.hidden_RK[chunk], counted_R=targets.counted_R[chunk])
        _diverge(logits_CV, inputs[2], rows, gradients, SoftTargets(found.loss, found.agreements_R[chunk]))

    return found, project(inputs, targets.counted_R, wanted, visit)


def _diverge(
    rows_CV: Tensor, bias_V: Tensor, targets: Targets, gradients: Gradients, result: SoftTargets
) -> None:
    """Write the results of rows of the student's logits into `result` and add to its loss. The rows become the
    gradient of the logits, as if every row counted; the bias's is added to `gradients`."""
    dtype, size, temperature = sum_dtype(rows_CV), targets.vocabulary_size, targets.temperature
    own_CV = rows_CV if rows_CV.dtype == dtype else rows_CV.to(dtype).add_(bias_V)
    student_CW, teacher_CW = own_CV[:, :size], _teacher_logits(targets, dtype)[:, :size]
    best_C1 = teacher_CW.argmax(-1, keepdim=True)
    same_C = student_CW.gather(1, best_C1)[:, 0] == student_CW.amax(-1)
    result.agreements_R.copy_(same_C & targets.counted_R)
    for logits_CW in (student_CW, teacher_CW):
        logits_CW.div_(temperature).sub_(logits_CW.logsumexp(-1, keepdim=True))
    probability_CW = teacher_CW.exp()
    losses_C = teacher_CW.sub_(student_CW).mul_(probability_CW).sum(-1)
    result.loss.add_(losses_C.masked_fill(~targets.counted_R, 0.0).sum() * temperature**2)
    if gradients.asked:
        student_CW.exp_().sub_(probability_CW).mul_(temperature)
        own_CV[:, size:] = 0.0
        if gradients.bias_V is not None:
            gradients.bias_V.add_(own_CV.T @ targets.counted_R.to(dtype))
        if own_CV.data_ptr() != rows_CV.data_ptr():
            rows_CV.copy_(own_CV)


def _teacher_logits(targets: Targets, dtype: torch.dtype) -> Tensor:
    """Compute the teacher's logits exactly as the student's, so that identical models have zero divergence."""
    hidden_RK, weight_VK, bias_V, *_ = targets
    if hidden_RK.dtype == dtype:
        return torch.addmm(bias_V, hidden_RK, weight_VK.T)
    return (hidden_RK @ weight_VK.T).to(dtype).add_(bias_V)
