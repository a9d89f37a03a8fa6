"""Attend over packed examples on a CPU, forward and backward.

Plain matrix products over dense tiles, in place where possible: at BERT's lengths faster on a CPU than torch's
fused kernel, and much faster with dropout, which that kernel lacks. One operator handles all tiles of a
micro-batch, so that torch.compile sees one node of static shape for any lengths: probabilities are in one buffer
sized for the maximum number of scores.

Shape legend: T packed tokens, N heads, D size of a head, P rows of all tiles, E examples or blocks of a tile,
S queries and K keys of each.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from pretrain.model.attention.tile_plan import TilePlan, plan_tiles, scores_per_token
from pretrain.model.attention.tiles import from_key_tiles, from_tiles, to_key_tiles, to_tiles
from pretrain.model.dropout import dropped, fill_keep_mask, survivors_scale
from pretrain.model.operators import operator
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


@operator("cpu_attention", torch.Tag.nondeterministic_seeded)
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
    plan = _plan(tuple(cu_seqlens.diff().tolist()), q_TND.shape[1], max_length, window)
    probabilities, keep = _buffers(q_TND, max_length, dropout, window)
    out_PD = q_TND.new_empty((len(plan.gather_P), q_TND.shape[-1]))
    queries = _by_tile(plan, (to_tiles(q_TND, plan), out_PD))
    keys = _by_tile(plan, (to_key_tiles(k_TND, plan), to_key_tiles(v_TND, plan)), of_keys=True)
    for tile, scores, kept, (q, out), (k, v) in zip(
        plan.tiles, _cut(probabilities, plan), _cut(keep, plan), queries, keys, strict=True
    ):
        torch.baddbmm(q.new_empty(()), q, k.transpose(1, 2), beta=0, alpha=q.shape[-1] ** -0.5, out=scores)
        by_head = scores.view(tile.examples, plan.heads, tile.length, tile.keys)
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


@operator("cpu_attention_backward")
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
    window: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of q, k and v."""
    plan = _plan(tuple(cu_seqlens.diff().tolist()), q_TND.shape[1], max_length, window)
    grad_PD = to_tiles(grad_TND, plan).index_fill_(0, plan.padding, 0.0)
    of_queries = (to_tiles(q_TND, plan), grad_PD, torch.empty_like(grad_PD))
    given = (to_key_tiles(k_TND, plan), to_key_tiles(v_TND, plan))
    of_keys = (*given, *(torch.empty_like(x) for x in given))
    alpha, zero = q_TND.shape[-1] ** -0.5, q_TND.new_empty(())
    for p, kept, (q, grad, grad_q), (k, v, grad_k, grad_v) in zip(
        _cut(probabilities, plan),
        _cut(keep, plan),
        _by_tile(plan, of_queries),
        _by_tile(plan, of_keys, of_keys=True),
        strict=True,
    ):
        torch.bmm(_dropped(p, kept, scale).transpose(1, 2), grad, out=grad_v)
        grad_p = _dropped(torch.bmm(grad, v.transpose(1, 2)), kept, scale)
        grad_s = torch._softmax_backward_data(grad_p, p, -1, p.dtype)
        torch.baddbmm(zero, grad_s, k, beta=0, alpha=alpha, out=grad_q)
        torch.baddbmm(zero, grad_s.transpose(1, 2), q, beta=0, alpha=alpha, out=grad_k)
    return from_tiles(of_queries[-1], plan), *(from_key_tiles(x, plan) for x in of_keys[2:])  # type: ignore[return-value]


@lru_cache(maxsize=8)
def _plan(lengths: tuple[int, ...], heads: int, max_length: int, window: int) -> TilePlan:
    """Plan the tiles for these lengths: cached per micro-batch, for all layers, forward and backward."""
    scores = sum(lengths) * scores_per_token(max_length, window)
    return plan_tiles(lengths, heads, _CPU, scores, window)


def _buffers(q_TND: Tensor, max_length: int, dropout: float, window: int) -> tuple[Tensor, Tensor]:
    """Allocate buffers for the maximum number of scores of the given tokens; unused memory is never touched. No
    mask without dropout."""
    scores = q_TND.shape[0] * q_TND.shape[1] * scores_per_token(max_length, window)
    return q_TND.new_empty(scores), q_TND.new_empty(scores if dropout > 0.0 else 0, dtype=torch.bool)


def _cut(buffer: Tensor, plan: TilePlan) -> Iterator[Tensor]:
    """Return each tile's part of the buffer, (E * N, S, K); empty for an empty buffer."""
    start = 0
    for tile in plan.tiles:
        shape = (tile.examples * plan.heads, tile.length, tile.keys)
        size = shape[0] * shape[1] * shape[2]
        yield buffer[start : start + size].view(shape) if len(buffer) else buffer
        start += size


def _by_tile(plan: TilePlan, columns: tuple[Tensor, ...], of_keys: bool = False) -> Iterator[list[Tensor]]:
    """Yield, for each tile, its rows of each column as (E * N, S, D), or (E * N, K, D) `of_keys`."""
    start = 0
    for tile, size in zip(plan.tiles, plan.key_sizes if of_keys else plan.sizes, strict=True):
        length = tile.keys if of_keys else tile.length
        yield [x[start : start + size].view(-1, length, x.shape[-1]) for x in columns]
        start += size


def _dropped(x: Tensor, keep: Tensor, scale: float) -> Tensor:
    return dropped(x, keep, scale) if len(keep) else x


@torch.library.register_fake("maskmill::cpu_attention")
def _(
    q_TND: Tensor,
    k_TND: Tensor,
    v_TND: Tensor,
    cu_seqlens: Tensor,
    max_length: int,
    dropout: float,
    causal: bool,
    window: int,
    *_ranks: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q_TND, memory_format=torch.contiguous_format), *_buffers(
        q_TND, max_length, dropout, window
    )


@torch.library.register_fake("maskmill::cpu_attention_backward")
def _(grad_TND: Tensor, q_TND: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    grad_q, grad_k, grad_v = (
        torch.empty_like(grad_TND, memory_format=torch.contiguous_format) for _ in "qkv"
    )
    return grad_q, grad_k, grad_v


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    q_TND, k_TND, v_TND, cu_seqlens, ctx.max_length, ctx.dropout, _, ctx.window = inputs[:8]
    ctx.save_for_backward(q_TND, k_TND, v_TND, cu_seqlens, *output[1:])


def _backward(ctx: Any, grad_TND: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    scale = survivors_scale(ctx.dropout)
    q_TND, k_TND, v_TND, cu_seqlens, probabilities, keep = ctx.saved_tensors
    saved = q_TND, k_TND, v_TND, cu_seqlens, probabilities, keep
    gradients = _attention_backward(grad_TND, *saved, ctx.max_length, scale, ctx.window)
    return *gradients, None, None, None, None, None, None, None


torch.library.register_autograd("maskmill::cpu_attention", _backward, setup_context=_save)
