"""Write and read a heartbeat file: a run's step, its activity and its process.

metrics.jsonl gets a line every train.log_every steps, and none while the model is evaluated or saved. The first rank's
heartbeat lets an observer on another machine distinguish a long wait from a dead run.
"""

import json
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from pretrain.run.atomic_write import replace
from pretrain.run.folder import RUN
from pretrain.run.tolerant_json import number, table

HEARTBEAT = ".heartbeat.json"
STARTING, TRAINING, EVALUATING, SAVING = "starting", "training", "evaluating", "saving"
MIN_INTERVAL_SECONDS = 5.0
"""Minimum seconds between two writes with the same `doing`: frequent writes slow a shared folder down."""


class Heartbeat:
    """Write the heartbeat file of a run, on the first rank only."""

    def __init__(self, folder: Path, first_rank: bool) -> None:
        self._path = folder / HEARTBEAT if first_rank else None
        self._who = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "pid_namespace": _pid_namespace(),
            "job": os.environ.get("SLURM_JOB_ID", ""),
            "attempt": table(folder / RUN).get("attempts"),
        }
        self._last, self._doing = 0.0, ""

    def write(self, step: int, doing: str) -> None:
        """Write the number of finished steps and the current activity. Ignores a folder that is full or gone."""
        if self._path is None or (
            doing == self._doing and time.monotonic() - self._last < MIN_INTERVAL_SECONDS
        ):
            return
        self._last, self._doing = time.monotonic(), doing
        words = {**self._who, **_since_boot(), "step": step, "doing": doing}
        with suppress(OSError):
            replace(self._path, json.dumps(words))


def read_heartbeat(folder: Path) -> dict[str, Any]:
    """Read the newest heartbeat; empty if there is none or it cannot be read."""
    try:
        values = table(folder / HEARTBEAT)
        return {**values, "step": int(values["step"]), "pid": int(values["pid"])}
    except (ValueError, KeyError, TypeError, OverflowError):
        return {}


def age_here(heartbeat: dict[str, Any]) -> float | None:
    """Return the seconds since it was written, by the clock that counts from this machine's start and that nobody sets;
    None if it was written on another machine, or before this one was restarted."""
    now, then = _since_boot(), number(heartbeat.get("uptime"))
    if not now or now["boot"] != heartbeat.get("boot") or then is None or then > now["uptime"]:
        return None
    return float(now["uptime"] - then)


def is_dead(heartbeat: dict[str, Any]) -> bool:
    """Return whether the process that wrote it is known to have ended: it ran on this machine and is gone. In another
    container, which numbers its processes separately, nothing is known: False."""
    if heartbeat.get("host") != socket.gethostname() or heartbeat.get("pid_namespace") != _pid_namespace():
        return False
    try:
        os.kill(heartbeat["pid"], 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False  # another user's
    return _is_zombie(heartbeat["pid"])


def _pid_namespace() -> str:
    """Return the PID namespace (Linux) of this process; empty elsewhere."""
    with suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


def _since_boot() -> dict[str, Any]:
    """Return which start of which machine this is, and the seconds since then (Linux); empty elsewhere."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return {"boot": boot, "uptime": round(time.clock_gettime(time.CLOCK_BOOTTIME), 3)}
    return {}


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return False
