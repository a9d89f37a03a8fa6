"""Write a small file that says at which step a run is, what it does, and who has been at work since when.

metrics.jsonl has a line every train.log_every steps, and none while the model is evaluated or saved. Whoever looks at a
run from elsewhere has to tell a long wait from a dead run: the first rank's pulse is for that.
"""

import json
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from pretrain.run.atomic_write import replace
from pretrain.run.tolerant_json import table

PULSE = ".pulse.json"
STARTING, TRAINING, EVALUATING, SAVING = "starting", "training", "evaluating", "saving"
EVERY = 5.0
"""Seconds between two beats of one kind, at least: shared folders do not like to be written to often."""


class Pulse:
    """Beats while a run is alive; on the first rank only."""

    def __init__(self, folder: Path, first_rank: bool) -> None:
        self._path = folder / PULSE if first_rank else None
        self._who = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "pids": _numbering(),
            "job": os.environ.get("SLURM_JOB_ID", ""),
        }
        self._last, self._doing = 0.0, ""

    def beat(self, step: int, doing: str) -> None:
        """Says that `step` steps are done and what is being done now. A folder that is full or gone is no matter."""
        if self._path is None or (doing == self._doing and time.monotonic() - self._last < EVERY):
            return
        self._last, self._doing = time.monotonic(), doing
        words = {**self._who, "at": time.time(), "step": step, "doing": doing}
        with suppress(OSError):
            replace(self._path, json.dumps(words))


def read_pulse(folder: Path) -> dict[str, Any]:
    """The newest beat; empty where there is none, or none that can be read."""
    try:
        values = table(folder / PULSE)
        return {**values, "at": float(values["at"]), "step": int(values["step"]), "pid": int(values["pid"])}
    except (ValueError, KeyError, TypeError, OverflowError):
        return {}


def is_dead(pulse: dict[str, Any]) -> bool:
    """Whether the process that beat is known to have ended: it was on this machine, and is no longer there. In
    another container, which numbers its processes anew, nothing is known."""
    if pulse.get("host") != socket.gethostname() or pulse.get("pids") != _numbering():
        return False
    try:
        os.kill(pulse["pid"], 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False  # another user's
    return _is_zombie(pulse["pid"])


def _numbering() -> str:
    """Names the numbering of processes (Linux's PID namespace) that this one is in."""
    with suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return False
