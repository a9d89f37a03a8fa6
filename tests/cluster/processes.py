"""/proc in, processes out: which ones a Slurm node started, and how to end them."""

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path


def processes() -> dict[int, int]:
    """The parent of every process."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (stat := _stat(int(entry.name))):
            found[int(entry.name)] = int(stat[1])
    return found


def of_node(node: str, configuration: Path) -> list[int]:
    """What the node of the cluster with this slurm.conf runs: its step daemons, and the processes that they started,
    which know by their environment where they are."""
    parents = processes()
    marks = {f"SLURMD_NODENAME={node}", f"SLURM_CONF={configuration}"}
    tasks = [pid for pid in parents if marks <= set(_read(pid, "environ").split("\0"))]
    daemons = {parents[pid] for pid in tasks if _read(parents[pid], "comm").strip() == "slurmstepd"}
    return [*daemons, *(pid for pid in with_descendants(tasks) if pid not in daemons)]


def with_descendants(pids: Iterable[int]) -> list[int]:
    """These processes and all that they and theirs started, parents first."""
    parents, found = processes(), list(pids)
    for pid in found:  # grows while it is read
        found += [child for child, parent in parents.items() if parent == pid and child not in found]
    return found


def is_alive(pid: int) -> bool:
    """Whether it runs; one that has ended and waits for its parent does not."""
    stat = _stat(pid)
    return bool(stat) and stat[0] != "Z"


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Sends a signal; a process that has ended meanwhile is no error."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def end(pids: Iterable[int], seconds: float) -> None:
    """Waits until all have ended, and kills what is left by then."""
    pids, limit = list(pids), time.monotonic() + seconds
    while time.monotonic() < limit and any(map(is_alive, pids)):
        time.sleep(0.1)
    send(pids, signal.SIGKILL)


def _stat(pid: int) -> list[str]:
    return _read(pid, "stat").rpartition(")")[2].split()


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="replace")
    except OSError:
        return ""
