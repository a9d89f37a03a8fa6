"""Take rows of ragged arrays: rows of different lengths, concatenated in a flat array."""

import numpy as np
from numpy.typing import NDArray

from data_pipeline.compiled.intrinsics import copy_run
from data_pipeline.compiled.jit import jit


def take_ragged(
    order: NDArray[np.integer], offsets: NDArray[np.int64], flat: NDArray
) -> tuple[NDArray, NDArray[np.int64]]:
    """Return rows `order` of a ragged array (flat, offsets), as a new (flat, offsets). Raises IndexError for rows
    outside `flat`."""
    starts, stops = offsets[:-1][order], offsets[1:][order]
    if len(order) and (starts.min() < 0 or stops.max() > len(flat) or (stops < starts).any()):
        raise IndexError(f"a row lies outside of the {len(flat)} entries")
    new_offsets = np.zeros(len(order) + 1, np.int64)
    np.cumsum(stops - starts, out=new_offsets[1:])
    taken = np.empty(new_offsets[-1], flat.dtype)
    _copy_rows(read_only(starts), read_only(new_offsets), read_only(flat), taken)
    return taken, new_offsets


@jit
def _copy_rows(starts, new_offsets, flat, taken):
    for i in range(len(starts)):
        copy_run(taken, new_offsets[i], flat, starts[i], starts[i] + new_offsets[i + 1] - new_offsets[i])


def read_only(array: NDArray) -> NDArray:
    """Return a read-only view, also of a memory map: compiled code then sees one array type instead of four."""
    view = np.ascontiguousarray(array).view(np.ndarray)
    view.flags.writeable = False
    return view
