"""Check a machine and a folder: report what works, what is missing, and what to do about it.

The hardware probes are in machine.py. Nothing heavy is imported: torch is tried in a subprocess, since its import
may crash.
"""

import ast
import importlib.util
import json
import os
import re
import resource
import shutil
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from launch.doctor.machine import (
    MISSING,
    NOTE,
    OK,
    Finding,
    Run,
    allocator,
    disk,
    first_line,
    gpus,
    limits,
    memory,
    processor,
    run_command,
    shared_memory,
)
from launch.ranks import tuning

REQUIRED_PACKAGES = (
    "deepspeed",
    "webdataset",
    "tokenizers",
    "transformers",
    "safetensors",
    "numba",
    "pyarrow",
)
"""Packages that training, or the steps before and after it, cannot work without."""

Probe = tuple[str, Callable[[], list[Finding]]]
"""What is checked, and the function that checks it."""


def examine(folder: Path, tell: Callable[[str], None]) -> list[Finding]:
    """Return all findings; `tell` is called with what is being checked. `folder`: where shards and runs will be."""
    run = run_command
    patient = partial(run_command, seconds=TORCH_IMPORT_SECONDS)
    first: list[Probe] = [
        (
            "processor and memory",
            lambda: [
                *processor(Path("/proc/cpuinfo")),
                *memory(Path("/proc/meminfo"), Path("/sys/fs/cgroup")),
                *allocator({**tuning(), **os.environ}),
            ],
        ),
        ("GPUs", lambda: gpus(run)),
    ]
    rest: list[Probe] = [
        ("packages", packages),
        ("compilers", lambda: compilers(run)),
        ("disk", lambda: disk(folder)),
        ("limits", lambda: [*shared_memory(Path("/dev/shm")), *limits(resource.getrlimit)]),
        ("Slurm", lambda: slurm(run)),
        ("keys", lambda: keys(os.environ, Path.home())),
    ]

    def results(probes: list[Probe]) -> list[Finding]:
        found: list[Finding] = []
        for name, probe in probes:
            tell(name)
            found += probe()
        return found

    with ThreadPoolExecutor(1) as beside:  # importing torch takes as long as all other checks
        torch = beside.submit(torch_build, patient)
        before, after = results(first), results(rest)
        tell("torch")
        found = [*before, *torch.result(), *after]
    return [*found, *conclusions(found)]


TORCH_PROBE = (
    "import json, torch; n = torch.cuda.device_count(); print(json.dumps({'version': torch.__version__,"
    " 'cuda': torch.version.cuda, 'gpus': n if torch.cuda.is_available() else 0, 'nccl': torch.distributed."
    "is_nccl_available(), 'gloo': torch.distributed.is_gloo_available(), 'sum': float(torch.ones(3).sum())}))"
)


TORCH_IMPORT_SECONDS = 180.0
"""Time limit for importing torch from a busy shared folder, in seconds."""


def torch_build(run: Run) -> list[Finding]:
    """Check whether torch works, what it is built for, and whether it sees the GPUs."""
    code, text = run([sys.executable, "-W", "ignore", "-c", TORCH_PROBE])
    try:
        about: dict[str, Any] = json.loads(text.strip().splitlines()[-1]) if code == 0 else {}
    except (ValueError, IndexError):
        about = {}
    if about.get("sum") != 3.0:
        words = _last(text) or f"exit code {code}"
        remedy = "make env, or pip install 'torch>=2.11,<2.14'"
        return [Finding("torch", MISSING, f"does not work: {words}", remedy, essential=True)]
    built = f"for CUDA {about['cuda']}" if about["cuda"] else "for CPUs only"
    found = [Finding("torch", OK, f"{about['version']}, built {built}")]
    if not about["gloo"]:
        remedy = "install a build of torch with distributed"
        found.append(Finding("torch", MISSING, "without gloo, by which ranks talk", remedy, essential=True))
    if about["gpus"]:
        nccl = "is there" if about["nccl"] else "is missing"
        found.append(Finding("cuda", OK, f"torch sees {about['gpus']} GPUs, NCCL {nccl}"))
    return found


def packages(has: Callable[[str], str] | None = None) -> list[Finding]:
    """Check the packages that training needs, and the optional ones."""
    installed = has or _installed
    lacking = [name for name in REQUIRED_PACKAGES if not installed(name)]
    found = [
        Finding("package", MISSING, f"{name} is not installed", "make env, or pip install .", essential=True)
        for name in lacking
    ]
    if not lacking:
        found.append(
            Finding("packages", OK, ", ".join(f"{name} {installed(name)}" for name in REQUIRED_PACKAGES))
        )
    found.append(_operations())
    if installed("triton"):
        found.append(
            Finding("triton", OK, f"{installed('triton')}: LAMB's fused kernels and torch.compile on CUDA")
        )
    else:
        text = "not installed: on CUDA, LAMB runs without its fused kernels"
        found.append(Finding("triton", NOTE, text, "pip install 'maskmill[gpu]'; of no use on a CPU"))
    for name, use, extra in (
        ("wandb", "watching runs in W&B", "pip install wandb"),
        ("s3fs", "sources and shards on S3", "pip install 'maskmill[s3]'"),
        ("distributed", "preparing data on Dask", "pip install 'maskmill[dask]'"),
    ):
        if installed(name):
            found.append(Finding(name, OK, f"{installed(name)}: {use}"))
        else:
            found.append(Finding(name, NOTE, f"not installed: no {use}", extra))
    return found


def _operations() -> Finding:
    """Report DeepSpeed's compiled operations, which nothing here needs, from its record of prebuilt ones."""
    place = importlib.util.find_spec("deepspeed")
    record = (
        Path(place.origin).with_name("git_version_info_installed.py") if place and place.origin else Path()
    )
    built: list[str] = []
    if record.is_file():
        values = re.search(r"installed_ops\s*=\s*(\{.*?\})", record.read_text(errors="replace"), re.DOTALL)
        try:
            found = ast.literal_eval(values[1]) if values else {}
            built = sorted(name for name, there in found.items() if there)
        except (ValueError, SyntaxError, AttributeError):
            built = []
    text = f"prebuilt: {', '.join(built)}" if built else "none is prebuilt"
    return Finding("DeepSpeed ops", OK, f"{text}; Maskmill needs none of them: LAMB has its own kernels")


def compilers(run: Run) -> list[Finding]:
    """Check the compilers that torch.compile and triton call."""
    found = []
    for names, use in (
        (("c++", "g++", "clang++"), "torch.compile on a CPU"),
        (("cc", "gcc", "clang"), "triton"),
    ):
        there = next((name for name in names if shutil.which(name)), "")
        if not there:
            remedy = "apt-get install g++ (dnf install gcc-c++); or train.compile=off"
            found.append(Finding("compiler", NOTE, f"no {names[0]}: {use} does not work", remedy))
            continue
        _, text = run([there, "--version"])
        found.append(Finding("compiler", OK, f"{there}, for {use}: {first_line(text)}"))
    return found


def slurm(run: Run) -> list[Finding]:
    """Check Slurm's commands, whether its controller answers, and what the cluster has."""
    lacking = [name for name in ("sbatch", "srun", "squeue", "scontrol", "sinfo") if not shutil.which(name)]
    if lacking:
        text = "not here" if len(lacking) == 5 else f"without {', '.join(lacking)}"
        return [Finding("Slurm", NOTE, text, "of no matter on one machine; on a cluster, use a login node")]
    code, text = run(["scontrol", "ping"])
    if code or " UP" not in text:
        text = f"its controller does not answer: {first_line(text)}"
        return [Finding("Slurm", MISSING, text, "ask whoever runs the cluster")]
    _, text = run(["sinfo", "--noheader", "--format=%P %D %G %a"])
    rows = [line.split() for line in text.splitlines() if len(line.split()) == 4]
    words = "; ".join(
        f"{name} of {count} nodes, {what.replace('(null)', 'no GPUs')}" for name, count, what, _ in rows
    )
    return [Finding("Slurm", OK, f"the controller answers; partitions: {words or 'none'}")]


def keys(environment: Mapping[str, str], home: Path) -> list[Finding]:
    """Check whether there are keys; never show them."""
    netrc = Path(environment.get("NETRC", str(home / ".netrc")))
    host = environment.get("WANDB_BASE_URL", "https://api.wandb.ai").split("//")[-1].split("/")[0]
    try:
        in_netrc = host in netrc.read_text(errors="replace")
    except OSError:
        in_netrc = False
    hub = Path(environment.get("HF_HOME", str(home / ".cache" / "huggingface")))
    token = Path(environment.get("HF_TOKEN_PATH", str(hub / "token")))
    found = []
    for name, there, use, remedy in (
        ("W&B key", bool(environment.get("WANDB_API_KEY")) or in_netrc, "monitor.tracker=wandb",
         "wandb login, or WANDB_API_KEY; without, runs are kept offline and `maskmill sync` sends them later"),
        ("Hugging Face token", bool(environment.get("HF_TOKEN")) or token.is_file(), "pushing models",
         "hf auth login, or HF_TOKEN; needed for pushing models only"),
    ):  # fmt: skip
        found.append(
            Finding(name, OK, f"present, for {use}") if there else Finding(name, NOTE, "absent", remedy)
        )
    return found


def conclusions(found: list[Finding]) -> list[Finding]:
    """Conclude what will work on this machine."""
    stops = [finding for finding in found if finding.essential and finding.level == MISSING]
    if stops:
        what = ", ".join(dict.fromkeys(finding.subject for finding in stops))
        return [Finding("training", MISSING, f"cannot work here: {what}", stops[0].remedy, essential=True)]
    levels = {finding.subject: finding.level for finding in found}
    if levels.get("cuda") == OK:
        return [
            Finding("training", OK, "works, on the GPUs: maskmill plan RECIPE says for how large a model")
        ]
    if levels.get("gpu") == OK:
        text = "works on the CPU only: torch does not see the GPUs"
        remedy = "install a build of torch for the driver's CUDA (TORCH_SPEC of make env)"
        return [Finding("training", NOTE, text, remedy)]
    return [Finding("training", OK, "works, on the CPU: maskmill train demo takes some minutes")]


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _last(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
