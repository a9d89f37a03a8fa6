"""Compile loops over arrays with numba, cache the result on disk, and provide what compiled code needs besides.

Use `jit` for nearly every loop, `inlined` inside the hottest ones, `allocating` for functions that make arrays.
numba is imported here and in data_pipeline/sequences/base.py, which declares a C function to it.
"""

import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.options import DefaultOptions
from numba.extending import intrinsic
from numpy.typing import NDArray

from data_pipeline.errors import printable
from data_pipeline.io.caches import (
    choose_cache,
    hash_sources,
    make_private,
    own_temporary_folder,
    package_folder,
    user_caches,
)


def _places() -> list[Path]:
    """List where compiled code may be cached: NUMBA_CACHE_DIR, next to the modules, and, for a container or a
    package that the system installed, the user's own cache."""
    named = [Path(_config.CACHE_DIR)] if _config.CACHE_DIR else []
    return [*named, Path(__file__).parent / "__pycache__", *user_caches(os.environ), own_temporary_folder()]


def _cache_folder() -> Path:
    """Return where compiled code is cached, created if needed: numba loads pickles from it, so it is this user's alone.
    Where no folder is, one that is used once."""
    chosen = choose_cache(_places())
    if chosen is not None and not chosen.why:
        with suppress(OSError):
            make_private(chosen.folder)
            return chosen.folder
    folder = chosen.folder if chosen is not None else Path(tempfile.mkdtemp(prefix="maskmill-"))
    if chosen is not None:
        make_private(folder)
        line = f"maskmill: compiled code is kept in {folder}, {chosen.why}"
        print(printable(line), file=sys.stderr, flush=True)
    os.environ["NUMBA_CACHE_DIR"] = str(folder)  # for the processes that this one starts, without the line
    return folder


_config: Any = numba.config
_COMPILED = _cache_folder() / hash_sources(package_folder(__name__))


# A function that allocates nothing needs no reference counts for its arrays. numba still counts at every call of an
# inner function, in atomic operations that cost more than the work: finding words took 13.0 instead of 2.9 ns per byte.
_UNCOUNTED: dict[str, Any] = {"_nrt": False} if hasattr(DefaultOptions, "_nrt") else {}


def jit(function: Callable[..., Any]) -> Any:
    """Compile `function`, which allocates no array, at its first call and cache the result on disk.

    numba recompiles when the function's own file changes, but not when a function or a constant from another file
    does, nor when a constant of a module without compiled code does: stale draws would survive. So the cache folder is
    named after a hash of the whole package's source."""
    return _compiled(function, **_UNCOUNTED)


def allocating(function: Callable[..., Any]) -> Any:
    """Compile like `jit` a function that makes or returns arrays."""
    return _compiled(function)


def inlined(function: Callable[..., Any]) -> Any:
    """Compile like `jit`, always inlined into the caller: for the inside of the hottest loops."""
    return _compiled(function, forceinline=True, **_UNCOUNTED)


def _compiled(function: Callable[..., Any], **options: Any) -> Any:
    elsewhere, _config.CACHE_DIR = _config.CACHE_DIR, str(_COMPILED)
    try:
        return numba.njit(cache=True, nogil=True, error_model="numpy", **options)(function)
    finally:
        _config.CACHE_DIR = elsewhere


# Give compiled code processor instructions that numba lacks, and a copy that allocates nothing.


@intrinsic
def _trailing_zeros(_context, _word):
    def generate(_target, builder, _signature, arguments):
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), generate


@intrinsic
def _load_word(_context, data, _position):
    def generate(target, builder, signature, arguments):
        array = target.make_array(signature.args[0])(target, builder, arguments[0])
        place = builder.gep(array.data, [arguments[1]])
        word = builder.load(builder.bitcast(place, ir.IntType(64).as_pointer()))
        word.align = 1
        return word

    return types.uint64(data, types.uint64), generate


@intrinsic
def _high_product(_context, _a, _b):
    def generate(_target, builder, _signature, arguments):
        wide = ir.IntType(128)
        a, b = (builder.zext(argument, wide) for argument in arguments)
        high = builder.lshr(builder.mul(a, b), ir.Constant(wide, 64))
        return builder.trunc(high, ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate


trailing_zeros: Any = _trailing_zeros
"""Number of zeros below the lowest set bit of a uint64; 64 if none is set."""
load_word: Any = _load_word
"""load_word(data, position): the eight bytes of the contiguous uint8 array from `position` on as a uint64. They must
lie within it: nothing is checked."""


_product: Any = _high_product


@inlined
def multiply_high(a, b):
    """Return the upper 64 bits of the 128-bit product of two uint64."""
    return _product(a, b)


@inlined
def copy_run(out, at, data, first, last):
    """Copy data[first:last] to out[at:]. A slice assignment would check for overlap, and allocate."""
    # unsigned: numba then checks no index for being negative, and the loop is vectorized
    to, source = np.uint64(at), np.uint64(first)
    for i in range(last - first):
        out[to + np.uint64(i)] = data[source + np.uint64(i)]


# Take rows of ragged arrays: rows of different lengths, concatenated in a flat array.


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
