"""Check a machine and a folder: report what works, what is missing, and what to do about it.

Each probe checks one thing, and names a remedy for what is wrong. Programs are called with argument lists, each under a
time limit. Nothing heavy is imported: torch is tried in a subprocess, since its import may crash.
"""

import ast
import csv
import importlib.util
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from launch.ranks import tuning
from pretrain.run.human import in_bytes

# Check the hardware and the limits of the machine.


OK, NOTE, MISSING = "ok", "note", "missing"
ANSWER_SECONDS = 20.0
"""Time limit of a program, in seconds."""


class Finding(NamedTuple):
    """One line of the report."""

    subject: str
    level: str
    """ok; note: works, but worth knowing; missing: something that does not work."""
    text: str
    remedy: str = ""
    essential: bool = False
    """Whether training is impossible without it."""


Run = Callable[[list[str]], tuple[int, str]]
"""Runs a command and returns its exit code and output. 127: no such program; 124: it timed out."""


def run_command(command: list[str], seconds: float = ANSWER_SECONDS) -> tuple[int, str]:
    """Run a program without a shell."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 124, f"no answer within {seconds:.0f} s"
    except OSError as error:
        return 127, str(error.strerror or error)
    return done.returncode, done.stdout


def processor(info: Path) -> list[Finding]:
    """Check the model and cores, as this process may use them, and bf16 support; `info`: /proc/cpuinfo."""
    words = info.read_text(errors="replace") if info.is_file() else ""
    named = re.search(r"^model name\s*: (.*)$", words, re.MULTILINE)
    name = named[1].strip() if named else platform.machine()
    usable, there = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    share = f", of {there}" if usable < there else ""
    half = re.search(r"\b(avx512_bf16|amx_bf16)\b", words)
    faster = f"; has {half[1]}: train.precision=bf16 may be faster than fp32 here" if half else ""
    return [Finding("cpu", OK, f"{name}, {usable} cores{share}{faster}")]


def memory(info: Path, groups: Path) -> list[Finding]:
    """Check the memory of the machine (/proc/meminfo) and of the container or job (cgroups)."""
    try:
        rows = dict(line.split(":", 1) for line in info.read_text().splitlines() if ":" in line)
        total, free = (int(rows[key].split()[0]) * 1024 for key in ("MemTotal", "MemAvailable"))
    except (OSError, KeyError, ValueError, IndexError):
        return [Finding("memory", NOTE, "size unknown")]
    limit = next(
        (n for name in ("memory.max", "memory/memory.limit_in_bytes") if (n := _whole(groups / name))), 0
    )
    capped = f", limited to {in_bytes(limit)} here" if 0 < limit < total else ""
    least = min(total, limit or total)
    if least < 2e9:
        return [
            Finding(
                "memory", NOTE, f"{in_bytes(total)}{capped}: little", "4 GB for the demo, more for all else"
            )
        ]
    return [Finding("memory", OK, f"{in_bytes(total)}, {in_bytes(free)} free{capped}")]


def allocator(environment: Mapping[str, str]) -> list[Finding]:
    """Check which memory allocator the training ranks use; `environment`: theirs, from `launch.ranks.tuning`."""
    if taken := environment.get("LD_PRELOAD"):
        return [Finding("allocator", OK, f"{taken} for the ranks of a training, in place of glibc's")]
    remedy = "apt install libtcmalloc-minimal4, or your system's gperftools"
    return [Finding("allocator", NOTE, "glibc's: training on CPUs takes more memory than it needs", remedy)]


def gpus(run: Run) -> list[Finding]:
    """Check what nvidia-smi reports: names, memory, driver, and the links between GPUs."""
    query = "name,memory.total,driver_version,compute_cap"
    code, text = run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"])
    if code == 127:
        remedy = "on a GPU machine, install NVIDIA's driver; in a container, start it with --gpus all (--nv)"
        return [Finding("gpu", NOTE, "none: no nvidia-smi here; training runs on the CPU", remedy)]
    rows = [[cell.strip() for cell in row] for row in csv.reader(text.splitlines()) if len(row) == 4]
    if code or not rows:
        words = first_line(text) or "says nothing"
        return [Finding("gpu", MISSING, f"nvidia-smi fails: {words}", "reload or reinstall NVIDIA's driver")]
    names = ", ".join(dict.fromkeys(row[0] for row in rows))
    sizes = ", ".join(dict.fromkeys(f"{float(row[1]) / 1024:.0f} GiB" for row in rows if _is_number(row[1])))
    found = [Finding("gpu", OK, f"{len(rows)} x {names} of {sizes}, driver {rows[0][2]}")]
    old = [row[0] for row in rows if _is_number(row[3]) and float(row[3]) < 8.0]
    if old:
        remedy = "train.precision=fp16, or fp32"
        found.append(Finding("gpu", NOTE, f"{old[0]} is older than Ampere: no bf16", remedy))
    return [*found, *_links(run, len(rows))]


def _links(run: Run, count: int) -> list[Finding]:
    """Check whether every pair of GPUs has NVLink, by the matrix of `nvidia-smi topo -m`."""
    if count < 2:
        return []
    code, text = run(["nvidia-smi", "topo", "-m"])
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    rows = [line.split()[1 : count + 1] for line in plain.splitlines() if re.match(r"GPU\d+\s+\S", line)]
    rows = [row for row in rows if "X" in row]
    kinds = {cell for row in rows for cell in row if cell != "X"}
    if code or not kinds:
        return [Finding("links", NOTE, "nvidia-smi topo -m does not tell the links between the GPUs")]
    if all(kind.startswith("NV") for kind in kinds):
        return [Finding("links", OK, f"NVLink between all GPUs ({', '.join(sorted(kinds))})")]
    slow = ", ".join(sorted(kind for kind in kinds if not kind.startswith("NV")))
    remedy = "larger train.global_batch or micro_batch, so that gradients are exchanged less often"
    return [Finding("links", NOTE, f"not all GPUs have NVLink: {slow} between some", remedy)]


def disk(folder: Path, seconds: float = 0.5) -> list[Finding]:
    """Measure free space, and write and read speed (uncached), in the folder or the one it would be made in."""
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    path = place / f".maskmill-doctor-{os.getpid()}"
    try:
        free = shutil.disk_usage(place).free
        written, to_disk = _write_for(path, seconds)
        back = _read_for(path, seconds)
    except OSError as error:
        remedy = "choose a folder that you may write to, with room"
        return [Finding("disk", MISSING, f"{place}: {error.strerror}", remedy, essential=True)]
    finally:
        with suppress(OSError):
            path.unlink()
    speed = f"writes {in_bytes(to_disk)}/s, reads {in_bytes(back)}/s (of {in_bytes(written)})"
    text = f"{place}: {in_bytes(free)} free; {speed}"
    if free < 2e9:
        return [
            Finding("disk", NOTE, text, "little room: shards take 2 bytes a token, checkpoints 12 a weight")
        ]
    if min(to_disk, back) < 50e6:
        return [
            Finding("disk", NOTE, text, "slow: checkpoints will take long; choose a faster disk for run.dir")
        ]
    return [Finding("disk", OK, text)]


def _write_for(path: Path, seconds: float, most: int = 1 << 30) -> tuple[int, float]:
    """Return the bytes written, and bytes per second until they are on the disk."""
    block, done, started = os.urandom(1 << 22), 0, time.monotonic()
    with path.open("wb") as file:
        while done < most and time.monotonic() - started < seconds:
            done += file.write(block)
            file.flush()
            os.fsync(file.fileno())
    return done, done / max(time.monotonic() - started, 1e-9)


def _read_for(path: Path, seconds: float) -> float:
    """Return the read speed in bytes per second."""
    done, started = 0, time.monotonic()
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while time.monotonic() - started < seconds and (data := file.read(1 << 22)):
            done += len(data)
    return done / max(time.monotonic() - started, 1e-9)


def shared_memory(place: Path) -> list[Finding]:
    """Check /dev/shm, which NCCL's ranks on one machine communicate through."""
    try:
        found = os.statvfs(place)
    except OSError:
        return [Finding("shared memory", NOTE, f"no {place}", "NCCL may need it")]
    size = found.f_frsize * found.f_blocks
    if size < 1 << 30:
        remedy = "docker run --shm-size=8g (or --ipc=host): NCCL needs more for many GPUs"
        return [Finding("shared memory", NOTE, f"{in_bytes(size)}: little", remedy)]
    return [Finding("shared memory", OK, in_bytes(size))]


def limits(get: Callable[[int], tuple[int, int]]) -> list[Finding]:
    """Check the shell's limits of a process: open files, locked memory, processes."""
    found = []
    files, locked, processes = (
        get(kind)[0] for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK, resource.RLIMIT_NPROC)
    )
    unlimited = resource.RLIM_INFINITY
    if files != unlimited and files < 1024:
        found.append(Finding("open files", NOTE, f"{files:,}: few", "ulimit -n 65536"))
    if processes != unlimited and processes < 1024:
        found.append(Finding("processes", NOTE, f"{processes:,}: few", "ulimit -u 4096"))
    if locked != unlimited and locked < 64 << 20:
        remedy = "ulimit -l unlimited, where InfiniBand links the machines"
        found.append(Finding("locked memory", NOTE, f"{in_bytes(locked)}: little", remedy))
    return found or [Finding("limits", OK, "open files, processes, locked memory")]


def first_line(text: str) -> str:
    """Return the first line that is not empty."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _whole(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


def _is_number(text: str) -> bool:
    return re.fullmatch(r"\d+(\.\d+)?", text) is not None


# Run all checks, with those of torch, packages, compilers, Slurm and keys, and conclude what will work.


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
