"""Attend within each example of a packed micro-batch, with the backend that suits device, dtype and dropout.

    varlen   torch.nn.attention.varlen: CUDA, half precision, Ampere or newer, no dropout, all or a window seen
    flash    torch's lower-level flash kernel, with dropout, a causal mask and a window: same devices
    tiles    dense tiles of near-equal lengths: CPU, fp32 and fp64, older GPUs, any dropout, any visibility

Both kernels count a window as keys (left, right) of the query, which they always include: (w, w), or (w, 0) where it
is causal. varlen_attn of torch 2.12 has no flag for that: a causal mask would be its window (-1, 0). A window costs
length times window in each backend: tiles are then blocks of queries with the keys in reach.

With fewer heads of keys than of queries (Ainslie et al. 2023, grouped-query attention) no backend repeats keys: flash
reads a head of keys for each of its queries' heads, tiles have them as rows of one matrix. varlen_attn of torch 2.11
takes no groups; it is the same kernel as flash.

Shape legend: T packed tokens, N heads, M heads of keys and values, G = N / M, D size of a head, P rows of all tiles, E
examples or blocks of a tile, S queries and K keys of each.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from data_pipeline.errors import UserError
from pretrain.model.attention_tiles import (
    FULL,
    Layout,
    TilePlan,
    Visibility,
    from_tiles,
    plan_tiles,
    scores_per_token,
    tile_attention,
    to_tiles,
)
from pretrain.model.ops import dropped, fill_keep_mask, operator, survivors_scale
from pretrain.model.torch_internals import flash_attention, softmax_gradient

# Tiles on a CPU, forward and backward: plain matrix products, in place where possible. At BERT's lengths they are
# faster on a CPU than torch's fused kernel, and much faster with dropout, which that kernel lacks. One operator
# handles all tiles of a micro-batch, so that torch.compile sees one node of static shape for any lengths:
# probabilities are in one buffer sized for the maximum number of scores.

_CPU = torch.device("cpu")


def cpu_attention(
    q_TND: Tensor,
    k_TMD: Tensor,
    v_TMD: Tensor,
    cu_seqlens: Tensor,
    max_length: int,
    dropout: float,
    visibility: Visibility = FULL,
) -> Tensor:
    """Compute softmax(q k' / sqrt(D)) v within each example, (T, N, D), over the visible keys, 0 without any;
    dropout on the probabilities.

    All tokens belong to an example of at most `max_length` tokens."""
    return _attention(q_TND, k_TMD, v_TMD, cu_seqlens, max_length, dropout, *visibility)[0]


@operator("cpu_attention", torch.Tag.nondeterministic_seeded)
def _attention(
    q_TND: Tensor,
    k_TMD: Tensor,
    v_TMD: Tensor,
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
    lengths, heads = tuple(cu_seqlens.diff().tolist()), q_TND.shape[1]
    plan = _plan(lengths, heads, k_TMD.shape[1], max_length, window)
    probabilities, keep = _buffers(q_TND, max_length, dropout, window)
    out_PD = q_TND.new_empty((len(plan.queries.gather), q_TND.shape[-1]))
    queries = _by_tile(plan, plan.queries, to_tiles(q_TND, plan.queries), out_PD)
    keys = _by_tile(plan, plan.keys, *(to_tiles(x, plan.keys) for x in (k_TMD, v_TMD)))
    for tile, scores, kept, (q, out), (k, v) in zip(
        plan.tiles, _cut(probabilities, plan), _cut(keep, plan), queries, keys, strict=True
    ):
        torch.baddbmm(q.new_empty(()), q, k.transpose(1, 2), beta=0, alpha=q.shape[-1] ** -0.5, out=scores)
        by_head = scores.view(tile.examples, heads, tile.length, tile.keys)
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
    return from_tiles(out_PD, plan.queries), probabilities, keep


@operator("cpu_attention_backward")
def _attention_backward(
    grad_TND: Tensor,
    q_TND: Tensor,
    k_TMD: Tensor,
    v_TMD: Tensor,
    cu_seqlens: Tensor,
    probabilities: Tensor,
    keep: Tensor,
    max_length: int,
    scale: float,
    window: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of q, k and v."""
    plan = _plan(tuple(cu_seqlens.diff().tolist()), q_TND.shape[1], k_TMD.shape[1], max_length, window)
    grad_PD = to_tiles(grad_TND, plan.queries).index_fill_(0, plan.padding, 0.0)
    of_queries = (to_tiles(q_TND, plan.queries), grad_PD, torch.empty_like(grad_PD))
    keys_and_values = [to_tiles(x, plan.keys) for x in (k_TMD, v_TMD)]
    of_keys = (*keys_and_values, *map(torch.empty_like, keys_and_values))
    alpha, zero = q_TND.shape[-1] ** -0.5, q_TND.new_empty(())
    for p, kept, (q, grad, grad_q), (k, v, grad_k, grad_v) in zip(
        _cut(probabilities, plan),
        _cut(keep, plan),
        _by_tile(plan, plan.queries, *of_queries),
        _by_tile(plan, plan.keys, *of_keys),
        strict=True,
    ):
        torch.bmm(_dropped(p, kept, scale).transpose(1, 2), grad, out=grad_v)
        grad_p = _dropped(torch.bmm(grad, v.transpose(1, 2)), kept, scale)
        grad_s = softmax_gradient(grad_p, p)
        torch.baddbmm(zero, grad_s, k, beta=0, alpha=alpha, out=grad_q)
        torch.baddbmm(zero, grad_s.transpose(1, 2), q, beta=0, alpha=alpha, out=grad_k)
    grad_k, grad_v = (from_tiles(x, plan.keys) for x in of_keys[2:])
    return from_tiles(of_queries[-1], plan.queries), grad_k, grad_v


@lru_cache(maxsize=8)
def _plan(lengths: tuple[int, ...], heads: int, key_heads: int, max_length: int, window: int) -> TilePlan:
    """Plan the tiles for these lengths: cached per micro-batch, for all layers, forward and backward."""
    scores = sum(lengths) * scores_per_token(max_length, window)
    return plan_tiles(lengths, heads, _CPU, scores, window, key_heads)


def _buffers(q_TND: Tensor, max_length: int, dropout: float, window: int) -> tuple[Tensor, Tensor]:
    """Allocate buffers for the maximum number of scores of the given tokens; unused memory is never touched. No
    mask without dropout."""
    scores = q_TND.shape[0] * q_TND.shape[1] * scores_per_token(max_length, window)
    return q_TND.new_empty(scores), q_TND.new_empty(scores if dropout > 0.0 else 0, dtype=torch.bool)


def _cut(buffer: Tensor, plan: TilePlan) -> Iterator[Tensor]:
    """Return each tile's part of the buffer, (E * M, G * S, K); empty for an empty buffer."""
    start = 0
    for tile in plan.tiles:
        shape = (tile.examples * plan.keys.heads, plan.group * tile.length, tile.keys)
        size = shape[0] * shape[1] * shape[2]
        yield buffer[start : start + size].view(shape) if len(buffer) else buffer
        start += size


def _by_tile(plan: TilePlan, layout: Layout, *columns: Tensor) -> Iterator[list[Tensor]]:
    """Yield, for each tile, its rows of each column: queries as (E * M, G * S, D), keys as (E * M, K, D)."""
    start = 0
    for tile, size in zip(plan.tiles, layout.sizes, strict=True):
        matrices = tile.examples * plan.keys.heads
        yield [x[start : start + size].view(matrices, -1, x.shape[-1]) for x in columns]
        start += size


def _dropped(x: Tensor, keep: Tensor, scale: float) -> Tensor:
    return dropped(x, keep, scale) if len(keep) else x


@torch.library.register_fake("maskmill::cpu_attention")
def _(
    q_TND: Tensor,
    k_TMD: Tensor,
    v_TMD: Tensor,
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
def _(
    grad_TND: Tensor, q_TND: Tensor, k_TMD: Tensor, v_TMD: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    grad_q, grad_k, grad_v = (
        torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q_TND, k_TMD, v_TMD)
    )
    return grad_q, grad_k, grad_v


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    q_TND, k_TMD, v_TMD, cu_seqlens, ctx.max_length, ctx.dropout, _, ctx.window = inputs[:8]
    ctx.save_for_backward(q_TND, k_TMD, v_TMD, cu_seqlens, *output[1:])


def _backward(ctx: Any, grad_TND: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    scale = survivors_scale(ctx.dropout)
    q_TND, k_TMD, v_TMD, cu_seqlens, probabilities, keep = ctx.saved_tensors
    saved = q_TND, k_TMD, v_TMD, cu_seqlens, probabilities, keep
    gradients = _attention_backward(grad_TND, *saved, ctx.max_length, scale, ctx.window)
    return *gradients, None, None, None, None, None, None, None


torch.library.register_autograd("maskmill::cpu_attention", _backward, setup_context=_save)


# The choice of a backend, and `attend` with any of them.


BACKENDS = ("varlen", "flash", "tiles")
_HALF = (torch.float16, torch.bfloat16)
_FLASH_DEVICES = ("cuda", "meta")  # memory is planned on the meta device, which represents a GPU


@dataclass(frozen=True, eq=False)
class Packing:
    """Positions of the examples in a packed run. One object per micro-batch: it caches the tile plan for all layers."""

    cu_seqlens: Tensor  # int32, examples + 1: example i holds tokens cu_seqlens[i]..cu_seqlens[i + 1] - 1
    lengths: tuple[int, ...]  # on the host, so that planning waits for no device; zeros may follow
    max_length: int  # at least the longest example; constant over the run where shapes are static
    _plans: dict[tuple[int, int, torch.device, int], TilePlan] = field(default_factory=dict, repr=False)

    def tiles(self, heads: int, device: torch.device, window: int = 0, key_heads: int = 0) -> TilePlan:
        """Return the tile plan for the given numbers of heads and window, cached; `key_heads`: 0: as many."""
        key = (heads, key_heads or heads, device, window)
        if key not in self._plans:
            plan = plan_tiles(self.lengths, heads, device, window=window, key_heads=key_heads)
            self._plans[key] = plan
        return self._plans[key]

    @staticmethod
    def of(lengths: Sequence[int], device: torch.device | str = "cpu") -> "Packing":
        """Build the packing of consecutive examples of `lengths` tokens."""
        cumulative = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
        return Packing(cumulative.to(device), tuple(lengths), max(lengths))


def choose_backend(
    device: torch.device,
    dtype: torch.dtype,
    head_size: int,
    dropout: float,
    visibility: Visibility = FULL,
    grouped: bool = False,
) -> str:
    """Return the name of the backend that `attend` uses for such tensors; `grouped`: there are fewer heads of keys."""
    if visibility.ranked:
        return "tiles"
    if device.type not in _FLASH_DEVICES or dtype not in _HALF or head_size % 8 or head_size > 256:
        return "tiles"
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
        return "tiles"
    return "flash" if dropout > 0.0 or visibility.causal or grouped else "varlen"


def attend(
    q_TND: Tensor,
    k_TMD: Tensor,
    v_TMD: Tensor,
    packing: Packing,
    dropout: float = 0.0,
    visibility: Visibility = FULL,
    backend: str | None = None,
) -> Tensor:
    """Compute softmax(q k' / sqrt(D)) v within each example of a packed run (Vaswani et al. 2017, section 3.2.1),
    over the keys that `visibility` allows; 0 for a query that sees none.

    q is (T, N, D), k and v are (T, M, D) of one floating dtype; the result is as q. With fewer heads of keys than of
    queries, N / M queries in a row use the same. `dropout` is the rate
    at which attention probabilities are zeroed: 0 in evaluation. `backend` forces one of BACKENDS, for tests. Raises
    UserError if the forced backend does not support the inputs."""
    (_, heads, size), key_heads = q_TND.shape, k_TMD.shape[1]
    grouped = key_heads < heads
    name = backend or choose_backend(q_TND.device, q_TND.dtype, size, dropout, visibility, grouped)
    qkv = (q_TND, k_TMD, v_TMD)
    if name == "varlen":
        _check_flash(name, q_TND, dropout, visibility, grouped)
        return _varlen(*qkv, packing, visibility.window)
    if name == "tiles" and q_TND.device.type == "cpu":
        return cpu_attention(*qkv, packing.cu_seqlens, packing.max_length, dropout, visibility)
    if name == "tiles":
        plan = packing.tiles(heads, q_TND.device, visibility.window, key_heads)
        return tile_attention(*qkv, plan, dropout, visibility)
    _check_flash(name, q_TND, dropout, visibility)
    window = visibility.window or None
    right = 0 if visibility.causal and window else window
    return flash_attention(
        qkv, packing.cu_seqlens, packing.max_length, dropout, visibility.causal, (window, right)
    )


def _varlen(q_TND: Tensor, k_TND: Tensor, v_TND: Tensor, packing: Packing, window: int) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn  # CUDA builds only promise it

    lengths = (packing.cu_seqlens, packing.cu_seqlens, packing.max_length, packing.max_length)
    limits: dict[str, Any] = {"window_size": (window, window)} if window else {}
    out_TND = varlen_attn(q_TND, k_TND, v_TND, *lengths, **limits)
    assert isinstance(out_TND, Tensor)  # no auxiliary output was asked for
    return out_TND


def _check_flash(
    name: str, q_TND: Tensor, dropout: float, visibility: Visibility, grouped: bool = False
) -> None:
    if name not in BACKENDS:
        raise UserError(f"no attention backend {name!r}", expected=", ".join(BACKENDS))
    if name == "varlen" and dropout > 0.0:
        raise UserError(
            f"the varlen backend has no dropout, and {dropout} is asked for",
            where="encoder.attention_dropout",
            remedy="set it to 0, or let the backend be chosen",
        )
    if grouped and name == "varlen":
        raise UserError(
            "the varlen backend takes no grouped heads", where="encoder.kv_heads", remedy="let it be chosen"
        )
    if visibility.ranked or (name == "varlen" and visibility.causal):
        raise UserError(
            f"the {name} backend cannot limit what is seen in this way", remedy="let it be chosen"
        )
    if q_TND.device.type not in _FLASH_DEVICES or q_TND.dtype not in _HALF:
        raise UserError(
            f"the {name} backend cannot take {q_TND.dtype} on {q_TND.device.type}",
            expected="float16 or bfloat16 on CUDA",
            remedy="let the backend be chosen",
        )
