"""Processes that see the pretended GPU, which is built at the first of them. pytest's own does not see it."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from subprocess import Popen
from tempfile import TemporaryFile
from typing import IO, Any

import library

from launch.ranks import free_port
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
    return on_gpus([more], *arguments, code=code, mistakes=mistakes)[0]


def on_gpus(
    places: Sequence[Mapping[str, str]], *arguments: str, code: int = 0, mistakes: bool = False
) -> list[subprocess.CompletedProcess[str]]:
    """The same as several processes at once, each with variables of its own. All are killed if one fails."""
    command = [sys.executable, "-P", *arguments]
    with ExitStack() as stack:
        files = [[stack.enter_context(TemporaryFile("w+")) for _ in range(2)] for _ in places]
        started = [
            stack.enter_context(Popen(command, cwd=ROOT, env=_environment(place), stdout=out, stderr=errors))
            for place, (out, errors) in zip(places, files, strict=True)
        ]
        try:
            _wait_for(started, code)
        finally:
            for process in started:
                process.kill()
        said = [[_read(file) for file in pair] for pair in files]
    done = [
        subprocess.CompletedProcess(command, process.returncode, *texts)
        for process, texts in zip(started, said, strict=True)
    ]
    everything = "\n".join(f"exit code {one.returncode}\n{one.stdout}\n{one.stderr}" for one in done)
    assert {one.returncode for one in done} == {code}, everything
    assert mistakes == any("[fake gpu] mistake" in one.stderr for one in done), everything
    return done


def ranks(number: int) -> list[dict[str, str]]:
    """The variables with which a launcher starts so many ranks on this machine, which has a pretended GPU for each."""
    common = {
        "WORLD_SIZE": str(number),
        "LOCAL_WORLD_SIZE": str(number),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "FAKE_GPU_DEVICES": str(number),
    }
    return [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(number)]


def trained(
    folder: Path, number: int, settings: list[str], world: int = 1, **more: str
) -> list[dict[str, Any]]:
    """The counts of each step of a run of so many, of its first rank, as counted_run.py writes them; it has ended and
    warned of nothing. `world`: the number of its ranks; `more`: variables."""
    script = str(HERE / "counted_run.py")
    arguments = (script, str(folder), "train", "demo", *settings, f"run.dir={folder / 'run'}")
    places = [{**place, **ZEROS, **more} for place in ranks(world)]
    for rank, done in enumerate(on_gpus(places, *arguments)):
        assert rank or f"step {number}/{number}" in done.stdout
        assert "determinis" not in done.stdout + done.stderr
    return counts_of(folder, 0)


def counts_of(folder: Path, rank: int) -> list[dict[str, Any]]:
    """What counted_run.py has written there as this rank."""
    lines = (folder / f"counts-{rank}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    return {
        **os.environ,
        **_variables(),
        "PYTHONPATH": f"{ROOT}{os.pathsep}{HERE}",
        "COLUMNS": "200",
        **more,
    }


def _wait_for(started: Sequence[Popen], code: int) -> None:
    """Return once all have ended, or one with another exit code."""
    limit = time.monotonic() + LIMIT
    while any(process.poll() is None for process in started):
        assert time.monotonic() < limit, f"they run for more than {LIMIT:.0f} s"
        if any(process.poll() not in (None, code) for process in started):
            time.sleep(5)  # the others say what they know of it
            return
        time.sleep(0.05)


def _read(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


@cache
def _variables() -> dict[str, str]:
    library.build(BUILT)
    return library.environment(BUILT)
