"""Run commands and trainings for the parts of the first hour with a GPU. Imports nothing but the standard library."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


class Failed(Exception):
    """A part has shown that something does not work; says what."""


class LeftOut(Exception):
    """A part cannot be done on this machine; says what it needs."""


@dataclass
class Day:
    """What all parts share."""

    out: Path
    carried: Path
    environment: dict[str, str]
    tiny: bool
    ends: float
    """By time.monotonic(), for all parts."""
    part_ends: float = 0.0
    """For the part that runs."""
    at_once: int = 1
    """Short runs that share the GPU, where nothing is timed."""
    gpus: int = 1
    """That torch sees."""
    studies: tuple[str, ...] = ()
    whole: Path | None = None
    """The run of `twice` that is left for `resume`: this call's, since one that an earlier call left may be of other
    code."""
    _log: threading.Lock = field(default_factory=threading.Lock)

    def python(self, *arguments: str, expected: tuple[int, ...] = (0,)) -> str:
        """Run Python with these arguments; return its output, which log.txt gets as well. Raises Failed if it ends
        with another exit code, TimeoutExpired when the part's time is over."""
        with tempfile.TemporaryFile() as file:  # its own: several run at once
            try:
                code = self._waited([sys.executable, "-P", *arguments], file)
            finally:
                file.seek(0)
                said = file.read().decode(errors="replace")
                with self._log, (self.out / "log.txt").open("a", encoding="utf-8") as log:
                    log.write(f"\n$ python {' '.join(arguments)}\n{said}")
        if code not in expected:
            last = (said.strip().splitlines() or ["no output"])[-1]
            raise Failed(f"exit code {code} of {' '.join(arguments[:3])}: {last}")
        return said

    def _waited(self, command: list[str], file: Any) -> int:
        left = max(1.0, self.part_ends - time.monotonic())
        process = subprocess.Popen(
            command, env=self.environment, stdout=file, stderr=file, start_new_session=True
        )
        try:
            return process.wait(left)
        except subprocess.TimeoutExpired:
            stop(process)
            raise

    def train(self, run: Path, shards: str, *settings: str, ranks: int = 1) -> str:
        """Train bert_mini on carried shards, on so many GPUs."""
        given = (f"train.shards={self.carried / shards}", *settings)
        return self.python(*train_command(run, "bert_mini", *given, ranks=ranks))


def stop(process: "subprocess.Popen[Any]") -> None:
    """End a process and all that it has started."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def train_command(run: Path, recipe: str, *settings: str, ranks: int = 1) -> list[str]:
    """Return the arguments of Python for a run on so many GPUs, whose metrics stay on this machine. Of bert_mini
    settings name the shards as train.shards: they are taken as they are, whatever recipe prepared them."""
    return [
        "-c",
        "from launch.cli import main; main()",
        "train",
        recipe,
        f"run.dir={run}",
        f"run.ranks={ranks}",
        "run.restarts=0",
        "monitor.tracker=jsonl",
        *settings,
    ]


def metrics(run: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl of a run."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def last_metrics(run: Path) -> dict[str, Any]:
    """Return the last value of each metric of a run."""
    last: dict[str, Any] = {}
    for line in metrics(run):
        last |= line
    return last


def in_words(figures: dict[str, Any]) -> str:
    """What fits into a cell: no lists, and of a hash its beginning."""
    return "; ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {str(value)[:16]}"
        for name, value in figures.items()
        if not isinstance(value, (dict, list))
    )
