"""Read the counts of the pretended GPU in this process, and show where it is waited for."""

import atexit
import ctypes
import sys
import traceback
from typing import NamedTuple


class Counts(NamedTuple):
    """What has happened since the process began, as `enum count` of fake_gpu.h has it."""

    waits: int = 0
    """Times that the host waited for the device."""
    staged: int = 0
    """Asynchronous copies whose memory on the host is not page-locked: a GPU may have the host wait for them."""
    mistakes: int = 0
    """Launches and copies that a real GPU refuses."""

    def since(self, before: "Counts") -> "Counts":
        return Counts(*(now - then for now, then in zip(self, before, strict=True)))


def read_counts() -> Counts:
    values = (ctypes.c_long * len(Counts._fields))()
    ctypes.CDLL(None).fake_gpu_counts(values)
    return Counts(*values)


def show_waits() -> None:
    """From now on write the Python stack of each wait to stderr."""
    library = ctypes.CDLL(None)
    library.fake_gpu_at_wait(_show)
    atexit.register(library.fake_gpu_at_wait, None)  # what waits after that has no Python to call


@ctypes.CFUNCTYPE(None, ctypes.c_char_p)
def _show(name: bytes) -> None:
    print(f"[fake gpu] {name.decode()} was called by", file=sys.stderr)
    traceback.print_stack(sys._getframe(1))
