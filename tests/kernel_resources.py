"""What a compiled kernel needs of a multiprocessor, as NVIDIA's cuobjdump reads it from the binary. Needs no GPU."""

import re
import subprocess
from pathlib import Path
from typing import NamedTuple


class Resources(NamedTuple):
    """Of a thread."""

    registers: int
    stack: int
    """Bytes."""
    local: int
    """Bytes of local memory, which is the device's memory: where registers are spilled to."""


def resources_of(binary: Path) -> Resources:
    """The resources of the one kernel in a file, a .cubin."""
    from triton import knobs

    command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(binary)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)", said)
    assert found, said
    return Resources(*map(int, found.groups()))
