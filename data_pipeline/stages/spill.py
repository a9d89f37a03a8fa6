"""Collect examples part by part, in columns that move to disk when they are too many for memory."""

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.io.files import writing
from data_pipeline.io.mmap import mapped
from data_pipeline.io.npy import offsets_of
from data_pipeline.records import Examples

_OFFSETS = tuple(f.name for f in fields(Examples) if f.name.endswith("offsets"))
_COLUMNS = tuple(f.name for f in fields(Examples) if f.name not in _OFFSETS)


def spill(parts: Iterable[Examples], folder: Path) -> Examples:
    """All examples of `parts`, one after the other; there has to be a part. The columns are written to `folder` and
    memory-mapped, but for the offsets: 16 bytes an example. Raises UserError where the disk is full."""
    dtypes: dict[str, np.dtype] = {}
    lengths: dict[str, list[NDArray]] = {name: [] for name in _OFFSETS}
    with writing(folder), ExitStack() as stack:
        files = {n: stack.enter_context(open(folder / f"instances.{n}", "wb")) for n in _COLUMNS}
        for part in parts:
            for name, file in files.items():
                column = np.ascontiguousarray(getattr(part, name))
                dtypes[name] = column.dtype
                file.write(column.data)
            for name, found in lengths.items():
                found.append(np.diff(getattr(part, name)))
    columns = {name: mapped(folder / f"instances.{name}", dtype) for name, dtype in dtypes.items()}
    offsets: dict[str, Any] = {name: offsets_of(np.concatenate(found)) for name, found in lengths.items()}
    return Examples(**columns, **offsets)
