"""Read the counts of the pretended GPU in this process."""

import ctypes
from typing import NamedTuple


class Counts(NamedTuple):
    """What has happened since the process began, as `enum count` of fake_gpu.h has it."""

    launches: int = 0
    """Kernels, matrix products, collectives and fills."""
    copies: int = 0
    """Asynchronous copies."""
    waits: int = 0
    """Times that the host waited for the device."""
    staged: int = 0
    """Of the copies those whose memory on the host is not page-locked."""
    mistakes: int = 0
    """Launches and copies that a real GPU refuses."""

    def since(self, before: "Counts") -> "Counts":
        return Counts(*(now - then for now, then in zip(self, before, strict=True)))


def read_counts() -> Counts:
    values = (ctypes.c_long * len(Counts._fields))()
    ctypes.CDLL(None).fake_gpu_counts(values)
    return Counts(*values)
