"""Processes that see the pretended GPU, which is built at the first of them. pytest's own does not see it."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

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


def trained(folder: Path, number: int, settings: list[str], **more: str) -> list[dict[str, Any]]:
    """The counts of each step of a run of so many, as counted_run.py writes them; it has ended and warned of nothing.
    `more`: variables."""
    counts, run = folder / "counts.jsonl", folder / "run"
    script = str(HERE / "counted_run.py")
    arguments = (script, str(counts), "train", "demo", *settings, f"run.dir={run}")
    done = on_gpu(*arguments, **ONLY_RANK, **ZEROS, **more)
    assert f"step {number}/{number}" in done.stdout
    assert "determinis" not in done.stdout + done.stderr
    return [json.loads(line) for line in counts.read_text(encoding="utf-8").splitlines()]


@cache
def _variables() -> dict[str, str]:
    library.build(BUILT)
    return library.environment(BUILT)
