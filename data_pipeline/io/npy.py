"""Write columns as .npy files, read their headers, memory-map columns, and turn lengths into offsets."""

import contextlib
import mmap
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from data_pipeline.io.files import open_to_write, writing

# Memory-map columns in files, and release the memory of what was read. Touched pages of a map count as memory of the
# process. The kernel maps more than that: sixteen pages around each, or two megabytes if the file is in huge pages, so
# random reads would soon map the whole file.


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


# Write columns, and read their headers.


def offsets_of(lengths: Sequence[int] | NDArray) -> NDArray[np.int64]:
    """Return (n + 1,): where each of n runs with these lengths begins, and where the last one ends."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def save_column(path: Path, column: NDArray) -> None:
    """Save like numpy.save, whose own error for a full disk only says that fewer bytes were written."""
    with writing(path), open_to_write(path, "wb") as file:
        write_header(file, column.dtype, len(column))
        file.write(np.ascontiguousarray(column).data)


def write_header(file: BinaryIO, dtype: np.dtype, length: int) -> None:
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (length,)}
    np.lib.format.write_array_header_1_0(file, header)


def opened(file: BinaryIO) -> tuple[np.dtype, int]:
    """Read the dtype of an .npy file and the offset of its first value."""
    np.lib.format.read_magic(file)
    _, _, dtype = np.lib.format.read_array_header_1_0(file)
    return dtype, file.tell()
