"""A command and a number of ranks in; that many local processes, supervised until the last ends, out.

Where torchrun, the deepspeed launcher or Slurm's srun has started the ranks already, nothing is started here.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

TUNING = {
    # glibc hands large blocks back to the system and clears them anew at each use; a training step allocates the
    # same ones over and over
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
    # idle OpenMP threads that spin for long take the cores from the loader's and the other ranks' threads
    "GOMP_SPINCOUNT": "1000",
}
"""Environment of CPU ranks, where the user has not set it."""

QUIET_CODES = (2, 3)
"""Exit codes of ranks that ended as they should: a mistake of the user told in one line; saved after a signal."""
GRACE = 15.0
"""Seconds that the other ranks get to end by themselves after one has failed or a signal was passed on."""


def start_ranks(arguments: list[str], ranks: int, logs: Path) -> int:
    """Runs `maskmill ARGUMENTS` in `ranks` processes and returns the exit code of the first that failed, or 0.

    Rank 0 shows its progress in this terminal; all else goes to rank-N.log in `logs`. SIGTERM, SIGINT and SIGUSR1
    go on to all ranks, which decide together where to stop. What made the first rank fail is said at the end."""
    logs.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    started = [_Rank(arguments, number, ranks, port, logs / f"rank-{number}.log") for number in range(ranks)]

    def pass_on(number: int, _frame: FrameType | None) -> None:
        for rank in started:
            rank.signal(number)

    before = {n: signal.signal(n, pass_on) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)}
    try:
        failed = _supervise(started)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for rank in started:
            rank.signal(signal.SIGKILL)
            rank.process.wait()
    if failed is None:
        return 0
    if failed.said():
        print(failed.said(), file=sys.stderr)
    return failed.code if failed.code > 0 else 128 - failed.code


class _Rank:
    """One process of the run, and what it wrote to its log in this life."""

    def __init__(self, arguments: list[str], number: int, ranks: int, port: int, log: Path) -> None:
        place = {"RANK": number, "WORLD_SIZE": ranks, "LOCAL_RANK": number, "LOCAL_WORLD_SIZE": ranks}
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment = {
            **TUNING,
            **os.environ,
            **{key: str(value) for key, value in {**place, **meeting}.items()},
        }
        self.number, self._log = number, log
        self._before = log.stat().st_size if log.exists() else 0
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "launch.cli", *arguments],
                env=environment,
                stdout=None if number == 0 else file,
                stderr=file,
            )

    @property
    def code(self) -> int:
        """Exit code; 0 while it runs."""
        return self.process.poll() or 0

    def signal(self, number: int) -> None:
        """Sends a signal, unless the process has ended."""
        if self.process.poll() is None:
            self.process.send_signal(number)

    def said(self) -> str:
        """For people: the one line of an error of theirs, or the end of what the rank wrote before it died."""
        with self._log.open("rb") as file:
            file.seek(self._before)
            lines = file.read().decode(errors="replace").strip().splitlines()
        if self.code in QUIET_CODES:
            return "\n".join(line for line in lines if line.startswith("maskmill: "))
        how = f"killed by {signal.Signals(-self.code).name}" if self.code < 0 else f"exit code {self.code}"
        return "\n".join([*lines[-20:], f"maskmill: rank {self.number} ended: {how}; see {self._log}"])


def _supervise(ranks: list[_Rank]) -> _Rank | None:
    """Waits for all ranks; returns the one that failed first. Once one has failed the others, which may wait for
    it for ever, get a grace period. A mistake of the user (exit code 2) is a cause, never a consequence."""
    failed: _Rank | None = None
    deadline = 0.0
    while any(rank.process.poll() is None for rank in ranks):
        if failed is None and (failed := _first_failed(ranks, but=3)):
            deadline = time.monotonic() + GRACE
        if failed is not None and time.monotonic() > deadline:
            for rank in ranks:
                rank.signal(signal.SIGKILL)
        time.sleep(0.05)
    mistaken = next((rank for rank in ranks if rank.code == 2), None)
    return mistaken or failed or _first_failed(ranks)


def _first_failed(ranks: list[_Rank], but: int = 0) -> _Rank | None:
    return next((rank for rank in ranks if rank.code not in (0, but)), None)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
