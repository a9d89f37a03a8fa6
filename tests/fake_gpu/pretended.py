"""Processes that see the pretended GPU, which is built at the first of them. pytest's own does not see it."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import library

from tests.command_line import ROOT

HERE = Path(__file__).parent
BUILT = ROOT / "build" / "fake_gpu"
"""Kept, with the kernels that Triton and Inductor have compiled: the second time takes a fraction of the first."""
ONLY_RANK = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
ZEROS = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
"""Each tensor gets memory of its own, of zeros. Memory that is used again holds what was there: as the number of
elements that a mask selects it may be of any size."""
LIMIT = 3000.0  # seconds; compiling takes minutes on a busy machine


def on_gpu(
    *arguments: str, code: int = 0, mistakes: bool = False, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments and variables where there is the pretended GPU. Fails, with the output, unless it
    ends with this exit code, and if it made a launch or a copy that a real GPU refuses, unless it should."""
    environment = {
        **os.environ,
        **_variables(),
        "PYTHONPATH": f"{ROOT}{os.pathsep}{HERE}",
        "COLUMNS": "200",
        **more,
    }
    command = [sys.executable, "-P", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert mistakes == ("[fake gpu] mistake" in done.stderr), done.stderr
    return done


@cache
def _variables() -> dict[str, str]:
    library.build(BUILT)
    return library.environment(BUILT)
