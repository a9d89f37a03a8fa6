"""Write a column as an .npy file, read its header, and turn lengths into offsets."""

from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from data_pipeline.io.files import open_to_write, writing


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
