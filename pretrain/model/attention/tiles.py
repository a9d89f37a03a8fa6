"""Attend densely over tiles of examples of near-equal lengths.

All moves between the packed and the tiled layout are gathers of whole rows in both directions: the padding's gradient
is zero, so no scatter-add is needed. Only the gradients of keys that several blocks of a window have are sums.

Shape legend: T packed tokens, N heads, D size of a head, P rows of all tiles (sum of E*N*S), E examples or blocks of a
tile, S queries and K keys of each.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from pretrain.model.attention.tile_plan import TilePlan
from pretrain.model.visibility import FULL, Visibility


def tile_attention(
    q_TND: Tensor,
    k_TND: Tensor,
    v_TND: Tensor,
    plan: TilePlan,
    dropout: float,
    visibility: Visibility = FULL,
) -> Tensor:
    """Compute softmax(q k' / sqrt(D)) v within each example, (T, N, D), over the visible keys, 0 without any;
    dropout on the probabilities. Uses torch's kernel per tile, where a GPU has no better backend."""
    size = q_TND.shape[-1]
    q_tiles = _ToTiles.apply(q_TND, plan).split(plan.sizes)
    k_tiles, v_tiles = (_ToKeyTiles.apply(x, plan).split(plan.key_sizes) for x in (k_TND, v_TND))
    out = []
    for tile, *qkv in zip(plan.tiles, q_tiles, k_tiles, v_tiles, strict=True):
        q, k, v = (x.view(tile.examples, plan.heads, -1, size) for x in qkv)
        bias = None if tile.bias_E11S is None else tile.bias_E11S.to(q.dtype)
        unseen = tile.hidden(visibility, q.device)
        if unseen is not None:
            # -inf would give NaN, in gradients too, for a query that sees no key
            lowest_E1SS = q.new_zeros(unseen.shape).masked_fill_(unseen, torch.finfo(q.dtype).min)
            bias = lowest_E1SS if bias is None else lowest_E1SS + bias
        dense = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout)
        if visibility.ranked and unseen is not None:
            dense = dense.masked_fill(unseen.all(-1, keepdim=True), 0.0)
        out.append(dense.reshape(-1, size))
    return _FromTiles.apply(torch.cat(out) if len(out) > 1 else out[0], plan)


class _ToTiles(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TND: Tensor, plan: TilePlan) -> Tensor:
        ctx.plan, ctx.shape = plan, x_TND.shape
        return to_tiles(x_TND, plan)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_PD: Tensor) -> tuple[Tensor, None]:
        return from_tiles(grad_PD, ctx.plan), None


class _ToKeyTiles(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TND: Tensor, plan: TilePlan) -> Tensor:
        ctx.plan, ctx.shape = plan, x_TND.shape
        return to_key_tiles(x_TND, plan)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_PD: Tensor) -> tuple[Tensor, None]:
        return from_key_tiles(grad_PD, ctx.plan), None


class _FromTiles(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_PD: Tensor, plan: TilePlan) -> Tensor:
        ctx.plan = plan
        return from_tiles(x_PD, plan)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_TND: Tensor) -> tuple[Tensor, None]:
        return to_tiles(grad_TND, ctx.plan).index_fill_(0, ctx.plan.padding, 0.0), None


def to_tiles(x_TND: Tensor, plan: TilePlan) -> Tensor:
    """Gather the rows of all tiles, (P, D); padding repeats its example's last token."""
    return x_TND.reshape(-1, x_TND.shape[-1]).index_select(0, plan.gather_P)


def from_tiles(x_PD: Tensor, plan: TilePlan) -> Tensor:
    """Gather the rows of tokens, (T, N, D), from those of all tiles."""
    return x_PD.index_select(0, plan.scatter_TN).view(-1, plan.heads, x_PD.shape[-1])


def to_key_tiles(x_TND: Tensor, plan: TilePlan) -> Tensor:
    """Gather the rows of the keys of all tiles, (rows, D)."""
    return x_TND.reshape(-1, x_TND.shape[-1]).index_select(0, plan.keys_P)


def from_key_tiles(grad_PD: Tensor, plan: TilePlan) -> Tensor:
    """Sum the gradients of the keys of all tiles by token, (T, N, D); those of hidden and padded keys are 0."""
    if plan.keys_P is plan.gather_P:
        return from_tiles(grad_PD, plan)
    summed = grad_PD.new_zeros(len(plan.scatter_TN), grad_PD.shape[-1]).index_add_(0, plan.keys_P, grad_PD)
    return summed.view(-1, plan.heads, grad_PD.shape[-1])
