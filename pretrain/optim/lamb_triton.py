"""Compute the two passes of LAMB and StableAdamW as Triton kernels. The only import of triton.

Same arguments and results as the passes in plain torch, `update` and `apply` of lamb.py.

A flat tensor is cut into chunks at each multiple of BLOCK elements and at segment borders. Each chunk belongs to
one parameter; its row of the chunk table gives its elements, and one program processes it. So a segment may start
anywhere, straddle blocks or fill part of one. Padding is in no chunk and is neither read nor written.

Bytes per element in fp32: the first pass reads w, g, m, v and writes m, v, u (28), the second reads w, u and writes
w (12). All norms must be known before the first weight changes, so 40 is the minimum.

Sums: each program sums its squares as a tree in fp32 and writes the sum to its own slot; a second kernel adds a
parameter's sums in float64, in table order. No atomics, so results are bitwise deterministic.
"""

# mypy: disable-error-code="no-untyped-def"

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from pretrain.optim.flat_layout import TINY, Coefficients, Layout, Passes, Sums

BLOCK = tl.constexpr(2048)
LANES = tl.constexpr(1024)
"""Number of partial sums that a program of the second kernel adds at a time."""
COLUMNS = tl.constexpr(4)
LAUNCH = {"num_warps": 8, "enable_fp_fusion": False}
"""Eight warps of 32 threads: each thread has 8 elements, two 16-byte loads per tensor. Without fusion each
operation rounds as in torch, at no cost: the kernels are memory-bound."""


class ChunkTable(NamedTuple):
    """The elements that each program processes."""

    chunks: Tensor
    """(chunks, 4) int32, in order of parameter: block of the flat tensor, first element in it, end, parameter."""
    bounds: Tensor
    """(parameters + 1,) int32: chunks bounds[p] to bounds[p + 1] - 1 are those of parameter p."""


@lru_cache(maxsize=4096)
def chunk_table(layout: Layout, device: torch.device) -> ChunkTable:
    """Build the chunk table of a layout on `device`, cached per layout."""
    rows = [np.zeros((0, COLUMNS.value), np.int64)]
    for index, start, length, _ in sorted(layout.segments, key=lambda segment: segment.parameter):
        blocks = np.arange(start // BLOCK.value, -(-(start + length) // BLOCK.value))
        low = np.maximum(start - blocks * BLOCK.value, 0)
        high = np.minimum(start + length - blocks * BLOCK.value, BLOCK.value)
        rows.append(np.stack((blocks, low, high, np.full(len(blocks), index)), axis=1))
    chunks = np.concatenate(rows)
    bounds = np.searchsorted(chunks[:, -1], np.arange(len(layout.names) + 1))
    return ChunkTable(*(torch.from_numpy(array.astype(np.int32)).to(device) for array in (chunks, bounds)))


@triton.jit
def _update_elements(
    weights,
    gradients,
    firsts,
    seconds,
    at,
    inside,
    beta1_left,
    beta2,
    beta2_left,
    eps,
    least,
    scale,
    weight_decay,
    RMS: tl.constexpr,
):
    """Update the elements `at` where `inside`; return the two sums over them, those of Sums.RMS or of Sums.NORMS."""
    w = tl.load(weights + at, mask=inside, other=0.0)
    g = tl.load(gradients + at, mask=inside, other=0.0)
    m = tl.load(firsts + at, mask=inside, other=0.0)
    v = tl.load(seconds + at, mask=inside, other=0.0)
    m += beta1_left * (g - m)
    v = beta2 * v + beta2_left * g * g
    u = scale * tl.div_rn(m, tl.sqrt_rn(v) + eps) + weight_decay * w
    u = tl.where(inside, u, 0.0)  # 0 / 0 where eps is 0
    tl.store(firsts + at, m, mask=inside)
    tl.store(seconds + at, v, mask=inside)
    tl.store(gradients + at, u, mask=inside)
    if RMS:
        one, two = tl.where(inside, tl.div_rn(g * g, tl.maximum(v, least)), 0.0), inside.to(tl.float32)
    else:
        one, two = w * w, u * u
    return tl.sum(one), tl.sum(two)


@triton.jit
def _update_kernel(
    weights,
    gradients,
    firsts,
    seconds,
    chunks,
    partials,
    count,
    beta1_left,
    beta2,
    beta2_left,
    eps,
    least,
    scale,
    weight_decay,
    RMS: tl.constexpr,
):
    """Process a chunk: moments, u over the gradient, partial sums to partials[0, chunk] and partials[1, chunk]."""
    chunk = tl.program_id(0)
    row = chunks + COLUMNS * chunk
    low, high = tl.load(row + 1), tl.load(row + 2)
    lanes = tl.arange(0, BLOCK)
    at = tl.load(row).to(tl.int64) * BLOCK + lanes
    if high - low == BLOCK:  # a whole block needs no mask, so its loads and stores are 16 bytes wide
        inside = tl.full([BLOCK], 1, tl.int1)
        one, two = _update_elements(
            weights, gradients, firsts, seconds, at, inside,
            beta1_left, beta2, beta2_left, eps, least, scale, weight_decay, RMS,
        )  # fmt: skip
    else:
        inside = (lanes >= low) & (lanes < high)
        one, two = _update_elements(
            weights, gradients, firsts, seconds, at, inside,
            beta1_left, beta2, beta2_left, eps, least, scale, weight_decay, RMS,
        )  # fmt: skip
    tl.store(partials + chunk, one)
    tl.store(partials + count + chunk, two)


@triton.jit
def _sum_kernel(partials, bounds, squares, count):
    """Sum the partial sums of parameter program_id(0), row program_id(1), in float64."""
    parameter, row = tl.program_id(0), tl.program_id(1)
    first, last = tl.load(bounds + parameter), tl.load(bounds + parameter + 1)
    lanes = tl.arange(0, LANES)
    total = tl.zeros([LANES], tl.float64)
    for chunk in range(first, last, LANES):
        at = chunk + lanes
        total += tl.load(partials + row * count + at, mask=at < last, other=0.0).to(tl.float64)
    tl.store(squares + row * tl.num_programs(0) + parameter, tl.sum(total))


@triton.jit
def _apply_elements(weights, updates, at, inside, step):
    w = tl.load(weights + at, mask=inside, other=0.0)
    u = tl.load(updates + at, mask=inside, other=0.0)
    tl.store(weights + at, w - step * u, mask=inside)


@triton.jit
def _apply_kernel(weights, updates, chunks, ratios, lr, HAS_RATIOS: tl.constexpr):
    """Process a chunk: w <- w - lr * ratio * u."""
    row = chunks + COLUMNS * tl.program_id(0)
    low, high = tl.load(row + 1), tl.load(row + 2)
    lanes = tl.arange(0, BLOCK)
    at = tl.load(row).to(tl.int64) * BLOCK + lanes
    step = lr
    if HAS_RATIOS:
        step = lr * tl.load(ratios + tl.load(row + 3))
    if high - low == BLOCK:
        _apply_elements(weights, updates, at, tl.full([BLOCK], 1, tl.int1), step)
    else:
        _apply_elements(weights, updates, at, (lanes >= low) & (lanes < high), step)


def update(
    weights: Tensor,
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    layout: Layout,
    numbers: Coefficients,
    sums: Sums,
) -> Tensor | None:
    """Run the first pass as kernels, see flat_layout.Passes."""
    table = chunk_table(layout, weights.device)
    count = len(table.chunks)
    partials = weights.new_empty(2, count)
    if count:
        _update_kernel[(count,)](
            weights,
            gradient,
            first,
            second,
            table.chunks,
            partials,
            count,
            1 - numbers.beta1,
            numbers.beta2,
            1 - numbers.beta2,
            numbers.eps,
            max(numbers.eps * numbers.eps, TINY),
            numbers.scale,
            numbers.weight_decay,
            RMS=sums == Sums.RMS,
            **LAUNCH,
        )
    if sums == Sums.NONE:
        return None
    squares = weights.new_empty(2, len(layout.names), dtype=torch.float64)
    if layout.names:
        _sum_kernel[(len(layout.names), 2)](partials, table.bounds, squares, count, enable_fp_fusion=False)
    return squares


def apply(weights: Tensor, update: Tensor, layout: Layout, ratios: Tensor | None, lr: float) -> None:
    """Run the second pass as a kernel, see flat_layout.Passes."""
    table = chunk_table(layout, weights.device)
    if len(table.chunks):
        given = None if ratios is None else ratios.to(torch.float32)
        _apply_kernel[(len(table.chunks),)](
            weights, update, table.chunks, given, lr, HAS_RATIOS=given is not None, **LAUNCH
        )


TRITON = Passes(update, apply)
