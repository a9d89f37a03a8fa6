"""Studies on one GPU: many small runs side by side, since each of them alone waits for its host."""

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.gpu_day.runs import Day, Failed

AT_ONCE, JOBS = 4, 4
"""Studies, and runs of each: as many runs as the machine of the first GPUs had cores."""
NEEDED = {"segments": "tasks", "elmo-gpt": "tasks", "objectives": "tasks", "languages": "texts"}
"""What a study reads that is not shipped: a folder that has to be carried."""
ALSO = {"bert-ablations": "tasks"}
"""What a study reads where it was carried, and does without elsewhere."""
GIVEN = {"tasks": "--data", "texts": "--source"}
CONTROL = "nvidia-cuda-mps-control"


def studies(day: Day, figures: dict[str, Any]) -> None:
    """Studies side by side, each as far as the time goes; the same command at home does the rest."""
    names = [name for name in day.studies if is_possible(day, name)]
    with sharing(day) as shared, ThreadPoolExecutor(AT_ONCE) as pool:
        said = list(pool.map(lambda name: studied(shared, name), names))
    for name, (status, runs) in zip(names, said, strict=True):
        figures[Path(name).stem] = f"{status}, {runs} runs"
    failed = [Path(name).stem for name, (status, _) in zip(names, said, strict=True) if status == "failed"]
    if failed:
        raise Failed(", ".join(failed))


def is_possible(day: Day, name: str) -> bool:
    """Whether what the study reads was carried."""
    return name not in NEEDED or (day.carried / NEEDED[name]).is_dir()


def studied(day: Day, name: str) -> tuple[str, int]:
    """Carry out a study; return how it ended and how many runs were measured. Its runs and shards stay here."""
    out = day.out / "studies" / Path(name).stem
    kind = (NEEDED | ALSO).get(name, "")
    files = [GIVEN[kind], str(day.carried / kind)] if kind and (day.carried / kind).is_dir() else []
    few = ["--seeds", "1"] if day.tiny else []
    command = ["study", name, "--out", str(out), "--jobs", str(JOBS), *files, *few]
    status = "done"
    try:
        day.python("-c", "from launch.cli import main; main()", *command)
    except subprocess.TimeoutExpired:
        status = "cut short"
    except Failed:
        status = "failed"
    for folder in ("runs", "data"):
        shutil.rmtree(out / folder, ignore_errors=True)
    return status, len(list(out.glob("cells/*.json")))


@contextlib.contextmanager
def sharing(day: Day) -> Iterator[Day]:
    """While open, processes of the day that is returned run on the GPU together, over NVIDIA's MPS, where its program
    is there; else they take turns, which is slower. Nothing of the GPU is set."""
    if shutil.which(CONTROL) is None:
        yield day
        return
    variables = {
        f"CUDA_MPS_{what}_DIRECTORY": str(day.out / f"mps-{what.lower()}") for what in ("PIPE", "LOG")
    }
    for folder in variables.values():
        Path(folder).mkdir(exist_ok=True)
    environment = {**day.environment, **variables}
    subprocess.run([CONTROL, "-d"], env=environment, check=True)
    try:
        yield replace(day, environment=environment)
    finally:
        subprocess.run([CONTROL], input="quit\n", text=True, env=environment, timeout=30, check=False)
