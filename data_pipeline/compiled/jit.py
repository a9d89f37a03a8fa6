"""Compile loops over arrays and cache the result on disk. The only import of numba.

Use `jit` for nearly every loop, `inlined` inside the hottest ones, `allocating` for functions that make arrays.
"""

import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba
from numba.core.options import DefaultOptions

from data_pipeline.io.caches import (
    choose_cache,
    hash_sources,
    make_private,
    own_temporary_folder,
    package_folder,
    user_caches,
)
from data_pipeline.io.redact import printable


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
