"""Order the examples of a shard: in document order, shuffled, or in blocks of near-equal lengths."""

import numpy as np
from numpy.typing import NDArray

from data_pipeline import rng
from data_pipeline.settings import SEQUENTIAL, DataSettings


def arrangement(lengths: NDArray[np.int64], settings: DataSettings, number: int) -> NDArray[np.int64]:
    """Return the examples (numbered in document order) in the order of shard number `number`.

    `data.order=sequential` keeps document order; otherwise they are shuffled, then `binned` if `data.bin_width` is
    set."""
    if settings.order == SEQUENTIAL:
        return np.arange(len(lengths))
    shuffled = rng.permutation(settings.seed, number, rng.SHUFFLE, len(lengths))
    if not settings.bin_width:
        return shuffled
    bins = (lengths - 1) // settings.bin_width
    places = binned(bins[shuffled], settings.block_examples, settings.seed, number)
    return shuffled[places]


def binned(bins: NDArray[np.int64], block: int, seed: int, number: int) -> NDArray[np.int64]:
    """Rearrange places 0..n-1 so that blocks of `block` hold one bin each.

    Each bin is cut into as many full blocks as it has examples for. The leftovers, less than a block per bin, are
    put in bin order and cut into blocks too, which hold neighbouring bins. The full blocks are shuffled; a short one
    stays last."""
    by_bin = np.argsort(bins, kind="stable")
    ends = np.cumsum(np.bincount(bins))
    rank = np.arange(len(bins)) - np.repeat(ends - np.bincount(bins), np.bincount(bins))
    whole = np.bincount(bins) // block * block
    left_over = rank >= np.repeat(whole, np.bincount(bins))
    order = np.concatenate([by_bin[~left_over], by_bin[left_over]])
    full = len(order) // block
    shuffled = rng.permutation(seed, number, rng.BIN_ORDER, full)
    return np.concatenate(
        [order[: full * block].reshape(full, block)[shuffled].ravel(), order[full * block :]]
    )
