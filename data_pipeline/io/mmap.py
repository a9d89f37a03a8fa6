"""Memory-map columns in files, and release the memory of what was read.

Touched pages of a map count as memory of the process. The kernel maps more than that: sixteen pages around each, or
two megabytes if the file is in huge pages, so random reads would soon map the whole file.
"""

import contextlib
import mmap
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def mapped_npy(path: Path) -> NDArray:
    """Map the column in an .npy file."""
    try:
        return _in_small_pages(np.load(path, mmap_mode="r", allow_pickle=False))
    except ValueError:  # an empty column cannot be mapped
        return np.load(path, allow_pickle=False)


def mapped(path: Path, dtype: np.dtype) -> NDArray:
    """Map a file that holds only values of one type."""
    if not path.stat().st_size:  # an empty file cannot be mapped
        return np.zeros(0, dtype)
    return _in_small_pages(np.memmap(path, dtype, "r"))


def release(columns: Any) -> None:
    """Release the memory of all that was touched of a dataclass of columns, as far as they are mapped."""
    for column in fields(columns):
        if (whole := getattr(getattr(columns, column.name), "_mmap", None)) is not None:
            whole.madvise(mmap.MADV_DONTNEED)


def _in_small_pages(column: np.memmap) -> np.memmap:
    whole: mmap.mmap = column._mmap  # type: ignore[attr-defined]
    with contextlib.suppress(OSError):  # a kernel without huge pages
        whole.madvise(mmap.MADV_NOHUGEPAGE)
    return column
