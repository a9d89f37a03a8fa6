"""Check the hardware and the limits of one machine, with a remedy for each finding.

Each probe checks one thing. Programs are called with argument lists, each under a time limit.
"""

import csv
import os
import platform
import re
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pretrain.run.human import in_bytes

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
