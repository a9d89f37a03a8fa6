"""Compile loops over arrays and cache the result on disk. The only import of numba.

Use `jit` for nearly every loop, `inlined` inside the hottest ones, `allocating` for functions that make arrays.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numba
from numba.core.options import DefaultOptions

from data_pipeline.io.caches import hash_sources, package_folder, user_caches


def _writable(folders: Sequence[Path]) -> Path:
    """Return the first of these that is writable, created if needed; the last if none is."""
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    return folders[-1]


def _places() -> list[Path]:
    """List where compiled code may be cached: NUMBA_CACHE_DIR, next to the modules, and, for a container or a
    package that the system installed, the user's own cache."""
    named = [Path(_config.CACHE_DIR)] if _config.CACHE_DIR else []
    return [*named, Path(__file__).parent / "__pycache__", *user_caches(os.environ)]


_config: Any = numba.config
_COMPILED = _writable(_places()) / hash_sources(package_folder(__name__))


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
