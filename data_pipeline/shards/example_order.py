"""Order the examples of a shard: as their documents come, shuffled, or in blocks of near-equal lengths."""

import numpy as np
from numpy.typing import NDArray

from data_pipeline.compiled import philox
from data_pipeline.settings import SEQUENTIAL, DataSettings


def arrangement(lengths: NDArray[np.int64], settings: DataSettings, number: int) -> NDArray[np.int64]:
    """The examples (numbered in the order of their documents) in the order of the shard that is the `number`-th
    to be written.

    `data.order=sequential` leaves them as they are; else they are shuffled, which `data.bin_width` follows by
    `binned`."""
    if settings.order == SEQUENTIAL:
        return np.arange(len(lengths))
    shuffled = philox.permutation(settings.seed, number, philox.SHUFFLE, len(lengths))
    if not settings.bin_width:
        return shuffled
    bins = (lengths - 1) // settings.bin_width
    places = binned(bins[shuffled], settings.block_examples, settings.seed, number)
    return shuffled[places]


def binned(bins: NDArray[np.int64], block: int, seed: int, number: int) -> NDArray[np.int64]:
    """Places 0..n-1 rearranged so that blocks of `block` hold one bin each.

    As many full blocks are cut of each bin as it has examples for. What is left over, less than a block of each bin,
    is put in the order of the bins and cut into blocks too, which hold neighbouring bins. The full blocks are
    shuffled; a short one stays last."""
    by_bin = np.argsort(bins, kind="stable")
    ends = np.cumsum(np.bincount(bins))
    rank = np.arange(len(bins)) - np.repeat(ends - np.bincount(bins), np.bincount(bins))
    whole = np.bincount(bins) // block * block
    left_over = rank >= np.repeat(whole, np.bincount(bins))
    order = np.concatenate([by_bin[~left_over], by_bin[left_over]])
    full = len(order) // block
    shuffled = philox.permutation(seed, number, philox.BIN_ORDER, full)
    return np.concatenate(
        [order[: full * block].reshape(full, block)[shuffled].ravel(), order[full * block :]]
    )
