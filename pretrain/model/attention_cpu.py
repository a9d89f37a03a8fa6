"""Attend over packed examples on a CPU, forward and backward.

Plain matrix products over dense tiles, in place where possible: at BERT's lengths faster on a CPU than torch's
fused kernel, and much faster with dropout, which that kernel lacks. One operator handles all tiles of a
micro-batch, so that torch.compile sees one node of static shape for any lengths: probabilities are in one buffer
sized for the maximum number of scores.

Shape legend: T packed tokens, N heads, D size of a head, P rows of all tiles, E examples and S length of a tile.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from pretrain.model.attention_tiles import TilePlan, from_tiles, plan_tiles, to_tiles
from pretrain.model.dropout import dropped, fill_keep_mask, survivors_scale
from pretrain.model.visibility import FULL, Visibility

_CPU = torch.device("cpu")


def cpu_attention(
    q_TND: Tensor,
    k_TND: Tensor,
    v_TND: Tensor,
    cu_seqlens: Tensor,
    max_length: int,
    dropout: float,
    visibility: Visibility = FULL,
) -> Tensor:
    """Compute softmax(q k' / sqrt(D)) v within each example, (T, N, D), over the visible keys, 0 without any;
    dropout on the probabilities.

    All tokens belong to an example of at most `max_length` tokens."""
    return _attention(q_TND, k_TND, v_TND, cu_seqlens, max_length, dropout, *visibility)[0]


@torch.library.custom_op(
    "maskmill::cpu_attention", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,)
)
def _attention(
    q_TND: Tensor,
    k_TND: Tensor,
    v_TND: Tensor,
    cu_seqlens: Tensor,
    max_length: int,
    dropout: float,
    causal: bool,
    window: int,
    query_ranks_T: Tensor | None,
    key_ranks_T: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the outputs, and for the backward pass the probabilities and their dropout mask, tile by tile. The
    last four arguments are a Visibility's fields, since an operator takes no custom tuples."""
    visibility = Visibility(causal, window, query_ranks_T, key_ranks_T)
    plan = _plan(tuple(cu_seqlens.diff().tolist()), q_TND.shape[1], max_length)
    probabilities, keep = _buffers(q_TND, max_length, dropout)
    out_PD = q_TND.new_empty((len(plan.gather_P), q_TND.shape[-1]))
    parts = _by_tile(plan, (to_tiles(q_TND, plan), to_tiles(k_TND, plan), to_tiles(v_TND, plan), out_PD))
    for tile, scores, kept, (q, k, v, out) in zip(
        plan.tiles, _cut(probabilities, plan), _cut(keep, plan), parts, strict=True
    ):
        torch.baddbmm(q.new_empty(()), q, k.transpose(1, 2), beta=0, alpha=q.shape[-1] ** -0.5, out=scores)
        by_head = scores.view(tile.examples, plan.heads, tile.length, tile.length)
        if tile.bias_E11S is not None:
            by_head.add_(tile.bias_E11S)
        if (unseen := tile.hidden(visibility, _CPU)) is not None:
            by_head.masked_fill_(unseen, -torch.inf)
        torch.softmax(scores, -1, out=scores)
        if visibility.ranked and unseen is not None:  # NaN where a query sees no key
            by_head.masked_fill_(unseen, 0.0)
        if dropout > 0.0:
            fill_keep_mask(kept, dropout)
        torch.bmm(_dropped(scores, kept, survivors_scale(dropout)), v, out=out)
    return from_tiles(out_PD, plan), probabilities, keep


@torch.library.custom_op("maskmill::cpu_attention_backward", mutates_args=())
def _attention_backward(
    grad_TND: Tensor,
    q_TND: Tensor,
    k_TND: Tensor,
    v_TND: Tensor,
    cu_seqlens: Tensor,
    probabilities: Tensor,
    keep: Tensor,
    max_length: int,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of q, k and v."""
    plan = _plan(tuple(cu_seqlens.diff().tolist()), q_TND.shape[1], max_length)
    grad_PD = to_tiles(grad_TND, plan).index_fill_(0, plan.padding, 0.0)
    given = (to_tiles(q_TND, plan), to_tiles(k_TND, plan), to_tiles(v_TND, plan), grad_PD)
    wanted = tuple(torch.empty_like(grad_PD) for _ in range(3))
    alpha, zero = q_TND.shape[-1] ** -0.5, q_TND.new_empty(())
    for p, kept, (q, k, v, grad, grad_q, grad_k, grad_v) in zip(
        _cut(probabilities, plan), _cut(keep, plan), _by_tile(plan, given + wanted), strict=True
    ):
        torch.bmm(_dropped(p, kept, scale).transpose(1, 2), grad, out=grad_v)
        grad_p = _dropped(torch.bmm(grad, v.transpose(1, 2)), kept, scale)
        grad_s = torch._softmax_backward_data(grad_p, p, -1, p.dtype)
        torch.baddbmm(zero, grad_s, k, beta=0, alpha=alpha, out=grad_q)
        torch.baddbmm(zero, grad_s.transpose(1, 2), q, beta=0, alpha=alpha, out=grad_k)
    grad_q, grad_k, grad_v = (from_tiles(x, plan) for x in wanted)
    return grad_q, grad_k, grad_v


@lru_cache(maxsize=4)
def _plan(lengths: tuple[int, ...], heads: int, max_length: int) -> TilePlan:
    """Plan the tiles for these lengths: cached per micro-batch, for all layers, forward and backward."""
    return plan_tiles(lengths, heads, _CPU, max_scores=sum(lengths) * max_length)


def _buffers(q_TND: Tensor, max_length: int, dropout: float) -> tuple[Tensor, Tensor]:
    """Allocate buffers for the maximum number of scores of the given tokens; unused memory is never touched. No
    mask without dropout."""
    scores = q_TND.shape[0] * q_TND.shape[1] * max_length
    return q_TND.new_empty(scores), q_TND.new_empty(scores if dropout > 0.0 else 0, dtype=torch.bool)


def _cut(buffer: Tensor, plan: TilePlan) -> Iterator[Tensor]:
    """Return each tile's part of the buffer, (E * N, S, S); empty for an empty buffer."""
    start = 0
    for tile in plan.tiles:
        shape = (tile.examples * plan.heads, tile.length, tile.length)
        size = shape[0] * shape[1] * shape[2]
        yield buffer[start : start + size].view(shape) if len(buffer) else buffer
        start += size


def _by_tile(plan: TilePlan, columns: tuple[Tensor, ...]) -> Iterator[list[Tensor]]:
    """Yield, for each tile, its rows of each column as (E * N, S, D)."""
    start = 0
    for tile, size in zip(plan.tiles, plan.sizes, strict=True):
        yield [x[start : start + size].view(-1, tile.length, x.shape[-1]) for x in columns]
        start += size


def _dropped(x: Tensor, keep: Tensor, scale: float) -> Tensor:
    return dropped(x, keep, scale) if len(keep) else x


@_attention.register_fake
def _(
    q_TND: Tensor,
    k_TND: Tensor,
    v_TND: Tensor,
    cu_seqlens: Tensor,
    max_length: int,
    dropout: float,
    *_visibility: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q_TND, memory_format=torch.contiguous_format), *_buffers(
        q_TND, max_length, dropout
    )


@_attention_backward.register_fake
def _(grad_TND: Tensor, q_TND: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    grad_q, grad_k, grad_v = (
        torch.empty_like(grad_TND, memory_format=torch.contiguous_format) for _ in "qkv"
    )
    return grad_q, grad_k, grad_v


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    q_TND, k_TND, v_TND, cu_seqlens, ctx.max_length, ctx.dropout = inputs[:6]
    ctx.save_for_backward(q_TND, k_TND, v_TND, cu_seqlens, *output[1:])


def _backward(ctx: Any, grad_TND: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    scale = survivors_scale(ctx.dropout)
    gradients = _attention_backward(grad_TND, *ctx.saved_tensors, ctx.max_length, scale)
    return *gradients, None, None, None, None, None, None, None


torch.library.register_autograd("maskmill::cpu_attention", _backward, setup_context=_save)
