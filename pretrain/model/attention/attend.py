"""Attend within each example of a packed micro-batch, with any backend.

Backends, chosen by device, dtype and dropout:

    varlen   torch.nn.attention.varlen: CUDA, half precision, Ampere or newer, no dropout, all or a window seen
    flash    torch's lower-level flash kernel, with dropout, a causal mask and a window: same devices
    tiles    dense tiles of near-equal lengths: CPU, fp32 and fp64, older GPUs, any dropout, any visibility

Both kernels count a window as keys (left, right) of the query, which they always include: (w, w), or (w, 0) where it is
causal. varlen_attn of torch 2.12 has no flag for that: a causal mask would be its window (-1, 0).

A window costs length times window in each of them: tiles are then blocks of queries with the keys in reach.

Shape legend: T packed tokens, N heads, M heads of keys and values, D size of a head.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from data_pipeline.errors import UserError
from pretrain.model.attention.cpu import cpu_attention
from pretrain.model.attention.tile_plan import TilePlan, plan_tiles
from pretrain.model.attention.tiles import tile_attention
from pretrain.model.visibility import FULL, Visibility

BACKENDS = ("varlen", "flash", "tiles")
_HALF = (torch.float16, torch.bfloat16)
_FLASH_DEVICES = ("cuda", "meta")  # memory is planned on the meta device, which represents a GPU


@dataclass(frozen=True, eq=False)
class Packing:
    """Positions of the examples in a packed run. One object per micro-batch: it caches the tile plan for all layers."""

    cu_seqlens: Tensor  # int32, examples + 1: example i holds tokens cu_seqlens[i]..cu_seqlens[i + 1] - 1
    lengths: tuple[int, ...]  # on the host, so that planning waits for no device; zeros may follow
    max_length: int  # at least the longest example; constant over the run where shapes are static
    _plans: dict[tuple[int, torch.device, int], TilePlan] = field(default_factory=dict, repr=False)

    def tiles(self, heads: int, device: torch.device, window: int = 0) -> TilePlan:
        """Return the tile plan for the given number of heads and window, cached."""
        key = (heads, device, window)
        if key not in self._plans:
            self._plans[key] = plan_tiles(self.lengths, heads, device, window=window)
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
) -> str:
    """Return the name of the backend that `attend` uses for such tensors."""
    if visibility.ranked:
        return "tiles"
    if device.type not in _FLASH_DEVICES or dtype not in _HALF or head_size % 8 or head_size > 256:
        return "tiles"
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
        return "tiles"
    return "varlen" if dropout == 0.0 and not visibility.causal else "flash"


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
    queries, N / M queries in a row use the same (Ainslie et al. 2023, grouped-query attention). `dropout` is the rate
    at which attention probabilities are zeroed: 0 in evaluation. `backend` forces one of BACKENDS, for tests. Raises
    UserError if the forced backend does not support the inputs."""
    name = backend or choose_backend(q_TND.device, q_TND.dtype, q_TND.shape[-1], dropout, visibility)
    group = q_TND.shape[1] // k_TMD.shape[1]
    k_TND, v_TND = (x if group == 1 else x.repeat_interleave(group, 1) for x in (k_TMD, v_TMD))
    qkv = (q_TND, k_TND, v_TND)
    if name == "varlen":
        _check_flash(name, q_TND, dropout, visibility)
        return _varlen(*qkv, packing, visibility.window)
    if name == "tiles" and q_TND.device.type == "cpu":
        return cpu_attention(*qkv, packing.cu_seqlens, packing.max_length, dropout, visibility)
    if name == "tiles":
        plan = packing.tiles(q_TND.shape[1], q_TND.device, visibility.window)
        return tile_attention(*qkv, plan, dropout, visibility)
    _check_flash(name, q_TND, dropout, visibility)
    lengths = (packing.cu_seqlens, packing.cu_seqlens, packing.max_length, packing.max_length)
    window, debug_mask = visibility.window or None, False
    return torch.ops.aten._flash_attention_forward(
        *qkv, *lengths, dropout, visibility.causal, debug_mask, window_size_left=window,
        window_size_right=0 if visibility.causal and window else window,
    )[0]  # fmt: skip


def _varlen(q_TND: Tensor, k_TND: Tensor, v_TND: Tensor, packing: Packing, window: int) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn  # CUDA builds only promise it

    lengths = (packing.cu_seqlens, packing.cu_seqlens, packing.max_length, packing.max_length)
    limits: dict[str, Any] = {"window_size": (window, window)} if window else {}
    out_TND = varlen_attn(q_TND, k_TND, v_TND, *lengths, **limits)
    assert isinstance(out_TND, Tensor)  # no auxiliary output was asked for
    return out_TND


def _check_flash(name: str, q_TND: Tensor, dropout: float, visibility: Visibility) -> None:
    if name not in BACKENDS:
        raise UserError(f"no attention backend {name!r}", expected=", ".join(BACKENDS))
    if name == "varlen" and dropout > 0.0:
        raise UserError(
            f"the varlen backend has no dropout, and {dropout} is asked for",
            where="encoder.attention_dropout",
            remedy="set it to 0, or let the backend be chosen",
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
