"""Compute losses of a vocabulary projection, and sample words from it, with only a few rows of logits at a time.

At 30,522 words the logits are the largest tensor of a step. Here only a chunk of rows exists at a time: a loss turns
the chunk into its own gradient, from which its share of all three gradients is computed, and the memory is reused.
The backward pass only scales.

Shape legend: R projected rows, H hidden size, E embedding size, K the teacher's hidden size, V words with padding, W
words without, C rows of a chunk, G rows of a group of chunks.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from pretrain.model.ops import operator

# Sampling: the word of a row is argmax(logits + Gumbel noise), a draw from the softmax of its logits. The noise of a
# word in a row is a hash of the row's key and depends on nothing else, so that a token draws the same word in any cut
# of the global batch, at every world size, after a resume and on any device. (Sums round differently in another cut:
# that moves a draw where two words are as good as tied.)


_CHUNK_ELEMENTS = {"cpu": 1 << 20, "cuda": 1 << 25}
"""Logits alive at a time: 4 MiB on a CPU, 128 MiB on a GPU."""
# Constants are the signed numbers with the bits of the unsigned ones in the sources: torch multiplies modulo 2**64.
_GOLDEN_64, _GOLDEN_32 = -0x61C8864680B583EB, -0x61C88647
_SPLITMIX = (-0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15)
_LOW_BIAS = (0x7FEB352D, -0x7B935975)


def row_keys(seed: int, keys_R: Tensor, positions_R: Tensor) -> Tensor:
    """Hash a seed, keys of examples and positions in them into a key (R,) int64 of each row (SplitMix64, Steele et al.
    2014)."""
    return _split_mix(_split_mix(keys_R + seed * _GOLDEN_64 % (1 << 63)) + positions_R * _GOLDEN_64)


@operator("sample_words")
def sample_words(
    hidden_RE: Tensor, weight_VE: Tensor, bias_V: Tensor, keys_R: Tensor, vocabulary_size: int
) -> Tensor:
    """Draw a word of each row from softmax(hidden weight' + bias): ids (R,) int64 below `vocabulary_size`.

    Noise and sums are in float32 (float64 for float64 input). No gradient comes through: detach the inputs. A node that
    torch.compile leaves as it is, with a few rows of logits alive at a time."""
    sampled_R = torch.empty_like(keys_R)
    weight_VE, bias_V = weight_VE[:vocabulary_size], bias_V[:vocabulary_size]
    words_V = torch.arange(vocabulary_size, device=keys_R.device, dtype=torch.int32)
    elements = _CHUNK_ELEMENTS.get(keys_R.device.type, _CHUNK_ELEMENTS["cuda"])
    rows = max(1, elements // vocabulary_size)
    for first in range(0, len(keys_R), rows):
        chunk = slice(first, first + rows)
        logits_CV = F.linear(hidden_RE[chunk], weight_VE)
        logits_CV = logits_CV.to(torch.promote_types(logits_CV.dtype, torch.float32)).add_(bias_V)
        sampled_R[chunk] = logits_CV.sub_(exponentials(keys_R[chunk], words_V).log_()).argmax(-1)
    return sampled_R


@torch.library.register_fake("maskmill::sample_words")
def _(hidden_RE: Tensor, weight_VE: Tensor, bias_V: Tensor, keys_R: Tensor, vocabulary_size: int) -> Tensor:
    return torch.empty_like(keys_R)


def exponentials(keys_C: Tensor, words_V: Tensor) -> Tensor:
    """Draw from the exponential distribution of mean 1 for each row's key (C,) int64 and each word (V,) int32: (C, V)
    float32. Minus its logarithm is Gumbel noise.

    The word and the lower half of the key go through Wellons' 32-bit hash ("lowbias32", 2018), which the upper half
    enters midway. The 31 bits that are used keep the full precision of float32 at small numbers: they win draws."""
    low_C1, high_C1 = (half[:, None].to(torch.int32) for half in (keys_C, keys_C >> 32))
    bits_CV = words_V * _GOLDEN_32 + low_C1
    bits_CV.bitwise_xor_(_shifted(bits_CV, 16)).mul_(_LOW_BIAS[0]).bitwise_xor_(high_C1)
    bits_CV.bitwise_xor_(_shifted(bits_CV, 15)).mul_(_LOW_BIAS[1])
    bits_CV.bitwise_xor_(_shifted(bits_CV, 16)).bitwise_and_((1 << 31) - 1)
    uniform_CV = bits_CV.to(torch.float32).add_(0.5).mul_(2.0**-31)
    return uniform_CV.neg_().log1p_().neg_()


def _split_mix(x: Tensor) -> Tensor:
    """Apply the finalizer of SplitMix64."""
    x = (x ^ _shifted(x, 30)) * _SPLITMIX[0]
    x = (x ^ _shifted(x, 27)) * _SPLITMIX[1]
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Shift to the right and fill with zeros: torch's own shift of a signed integer copies its sign."""
    return (x >> bits).bitwise_and_((1 << (8 * x.element_size() - bits)) - 1)


# The projection in chunks, which both losses use: each computes its loss and its gradients per chunk.


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


# The cross-entropy of each row's word; `reference_cross_entropy` states it in four lines.


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
        loss, losses_R, hits_R, *_ = _ce_with_gradients(hidden_RH, weight_VH, bias_V, ids_R, vocabulary_size)
        return CrossEntropy(loss, losses_R, hits_R, torch.full_like(ids_R, -1))
    compute = partial(_ce_compute, ids_R, vocabulary_size)
    return CrossEntropy(*EarlyGradients.apply(hidden_RH, weight_VH, bias_V, compute, torch.is_grad_enabled()))


def reference_cross_entropy(
    hidden_RH: Tensor, weight_VH: Tensor, bias_V: Tensor, ids_R: Tensor, vocabulary_size: int
) -> CrossEntropy:
    """Compute the same without slices."""
    logits = F.linear(hidden_RH, weight_VH, bias_V)[:, :vocabulary_size]
    losses_R = F.cross_entropy(logits, ids_R, ignore_index=-1, reduction="none")
    answers_R = logits.argmax(-1)
    return CrossEntropy(losses_R.sum(), losses_R.detach(), (answers_R == ids_R) & (ids_R >= 0), answers_R)


@operator("vocabulary_cross_entropy")
def _ce_with_gradients(
    hidden_RH: Tensor, weight_VH: Tensor, bias_V: Tensor, ids_R: Tensor, vocabulary_size: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute loss, losses and hits of the rows and the gradients of the loss."""
    found, gradients = _ce_compute(ids_R, vocabulary_size, (hidden_RH, weight_VH, bias_V), [True] * 3)
    hidden, weight, bias = (g for g in gradients if g is not None)
    return found.loss, found.losses_R, found.hits_R, hidden, weight, bias


@torch.library.register_fake("maskmill::vocabulary_cross_entropy")
def _(
    hidden_RH: Tensor, weight_VH: Tensor, bias_V: Tensor, ids_R: Tensor, vocabulary_size: int
) -> tuple[Tensor, ...]:
    found = _ce_nothing_yet(hidden_RH, ids_R)
    return (*found[:3], *empty_gradients((hidden_RH, weight_VH, bias_V)))


torch.library.register_autograd(
    "maskmill::vocabulary_cross_entropy", scale_gradients, setup_context=keep_gradients
)


def _ce_nothing_yet(hidden_RH: Tensor, ids_R: Tensor) -> CrossEntropy:
    dtype = sum_dtype(hidden_RH)
    return CrossEntropy(
        hidden_RH.new_zeros((), dtype=dtype),
        hidden_RH.new_zeros(ids_R.shape, dtype=dtype),
        torch.zeros_like(ids_R, dtype=torch.bool),
        torch.full_like(ids_R, -1),
    )


def _ce_compute(
    ids_R: Tensor, vocabulary_size: int, inputs: Inputs, wanted: Sequence[bool]
) -> tuple[CrossEntropy, Gradients]:
    """Compute the cross-entropy and the requested gradients."""
    found = _ce_nothing_yet(inputs[0], ids_R)

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


# The divergence from a teacher's projection; `reference_soft_targets` states it plainly.


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
        loss, agreements_R, *_ = _soft_with_gradients(hidden_RH, weight_VH, bias_V, *targets)
        return SoftTargets(loss, agreements_R)
    compute = partial(_soft_compute, targets)
    return SoftTargets(*EarlyGradients.apply(hidden_RH, weight_VH, bias_V, compute, torch.is_grad_enabled()))


def reference_soft_targets(
    hidden_RH: Tensor, weight_VH: Tensor, bias_V: Tensor, targets: Targets
) -> SoftTargets:
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
def _soft_with_gradients(
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
    found, gradients = _soft_compute(targets, (hidden_RH, weight_VH, bias_V), [True] * 3)
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
    return (*_soft_nothing_yet(hidden_RH, counted_R), *empty_gradients((hidden_RH, weight_VH, bias_V)))


torch.library.register_autograd("maskmill::soft_targets", scale_gradients, setup_context=keep_gradients)


def _soft_nothing_yet(hidden_RH: Tensor, counted_R: Tensor) -> SoftTargets:
    return SoftTargets(hidden_RH.new_zeros((), dtype=sum_dtype(hidden_RH)), torch.zeros_like(counted_R))


def _soft_compute(targets: Targets, inputs: Inputs, wanted: Sequence[bool]) -> tuple[SoftTargets, Gradients]:
    """Compute the divergence and the requested gradients."""
    found = _soft_nothing_yet(inputs[0], targets.counted_R)

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
