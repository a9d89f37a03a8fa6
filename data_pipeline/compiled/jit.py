"""Compile loops over arrays and cache the result on disk. The only import of numba.

`jit` is what nearly every loop wants; `inlined` is for the inside of the hottest ones, `allocating` for what makes
arrays itself.
"""

import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numba
from numba.core.options import DefaultOptions


def _package() -> Path:
    """The folder of the package that this module belongs to, however deep in it this module is."""
    return Path(str(sys.modules[__name__.partition(".")[0]].__file__)).parent


def _hash_sources(package: Path) -> str:
    """Hash every source file of `package`, subfolders included.

    All, because any of them may take part: a compiled function keeps the constants of modules that hold no compiled
    code themselves. Reading some hundred files takes a few milliseconds."""
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(package.rglob("*.py")):
        text = path.read_bytes()
        digest.update(f"{path.relative_to(package)} {len(text)}\n".encode() + text)
    return digest.hexdigest()


def _writable(folders: Sequence[Path]) -> Path:
    """The first of these that can be written, and is made if need be; the last if none can."""
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    return folders[-1]


def _places() -> list[Path]:
    """Where compiled code may be: what NUMBA_CACHE_DIR names, beside the modules, and, for a container or a package
    that the system installed, the user's own cache."""
    named = [Path(_config.CACHE_DIR)] if _config.CACHE_DIR else []
    own = Path(os.environ.get("XDG_CACHE_HOME") or Path(os.environ.get("HOME", "")) / ".cache") / "maskmill"
    return [*named, Path(__file__).parent / "__pycache__", own]


_config: Any = numba.config
_COMPILED = _writable(_places()) / _hash_sources(_package())


# A function that allocates nothing need not count who holds its arrays. numba counts at every call of an inner function
# all the same, in atomic operations that cost more than the work: finding words took 13.0 instead of 2.9 ns a byte.
_UNCOUNTED: dict[str, Any] = {"_nrt": False} if hasattr(DefaultOptions, "_nrt") else {}


def jit(function: Callable[..., Any]) -> Any:
    """Compiles `function`, which allocates no array, at its first call and keeps the result on disk.

    numba recompiles when the function's own file changes, but not when a function or a constant from another file
    does: the old draws would live on. So the cache is a folder named after the source of the whole package."""
    return _compiled(function, **_UNCOUNTED)


def allocating(function: Callable[..., Any]) -> Any:
    """As `jit`, for a function that makes or returns arrays."""
    return _compiled(function)


def inlined(function: Callable[..., Any]) -> Any:
    """As `jit`, and always a part of the code that calls it: for the inside of the hottest loops."""
    return _compiled(function, forceinline=True, **_UNCOUNTED)


def _compiled(function: Callable[..., Any], **options: Any) -> Any:
    elsewhere, _config.CACHE_DIR = _config.CACHE_DIR, str(_COMPILED)
    try:
        return numba.njit(cache=True, nogil=True, error_model="numpy", **options)(function)
    finally:
        _config.CACHE_DIR = elsewhere
