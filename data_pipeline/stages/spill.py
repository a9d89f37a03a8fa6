"""Collect examples part by part, in columns that spill to disk when they exceed memory."""

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from data_pipeline.io.files import open_to_write, writing
from data_pipeline.io.npy import mapped, offsets_of
from data_pipeline.records import OFFSETS, Examples


def spill(parts: Iterable[Examples], folder: Path) -> Examples:
    """Concatenate the examples of `parts`, at least one. The columns are written to `folder` and memory-mapped,
    except the offsets: 16 bytes per example. Raises UserError if the disk is full."""
    dtypes: dict[str, np.dtype] = {}
    lengths: dict[str, list[NDArray]] = {name: [] for name in OFFSETS}
    with writing(folder), ExitStack() as stack:
        files: dict[str, BinaryIO] = {}
        for part in parts:
            for name, column in part.columns.items():
                if name in lengths:
                    lengths[name].append(np.diff(column))
                    continue
                if name not in files:
                    files[name] = stack.enter_context(open_to_write(folder / f"instances.{name}", "wb"))
                dtypes[name] = column.dtype
                files[name].write(np.ascontiguousarray(column).data)
    columns = {name: mapped(folder / f"instances.{name}", dtype) for name, dtype in dtypes.items()}
    offsets: dict[str, Any] = {name: offsets_of(np.concatenate(found)) for name, found in lengths.items()}
    return Examples(**columns, **offsets)
