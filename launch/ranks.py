"""Start a command as several local processes, supervise them, and restart them after a fault.

If torchrun, the deepspeed launcher or Slurm's srun has already started the ranks, nothing is started here.
"""

import ctypes
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from ctypes.util import find_library
from functools import cache
from pathlib import Path
from types import FrameType, TracebackType

from data_pipeline.errors import EXIT_STOPPED, EXIT_USER_ERROR, printable
from data_pipeline.io.files import open_to_write, own_folder
from pretrain.distributed.launch_env import SUPERVISOR
from pretrain.distributed.watchdog import stage_in

GLIBC_ENVIRONMENT = {
    # glibc returns large blocks to the system, which clears them again at each use; a training step allocates the
    # same ones repeatedly
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
    # idle OpenMP threads that spin for long take cores from the loader's and the other ranks' threads
    "GOMP_SPINCOUNT": "1000",
}
"""Environment of ranks, unless the user has set it."""
ALLOCATOR = "tcmalloc_minimal"
"""Replaces glibc's allocator if installed: glibc's heap keeps growing while micro-batches differ in length, this one
does not (docs/evidence/benchmarks_cpu.md)."""
ALLOCATOR_ENVIRONMENT = {"TCMALLOC_RELEASE_RATE": "0", "TCMALLOC_LARGE_ALLOC_REPORT_THRESHOLD": "0"}

QUIET_CODES = (EXIT_USER_ERROR, EXIT_STOPPED)
"""Exit codes of ranks that ended as designed: a user error reported in one line; saved after a signal. The first
would recur and the second is wanted: nothing is restarted after them."""
KILL_AFTER_FAILURE_SECONDS = 15.0
"""Seconds that the other ranks get to exit on their own after one has failed."""
KILL_AFTER_END_SECONDS = 300.0
"""Seconds that they get after one has finished, saved or refused. All ranks save, and refuse, together, so that
only the first rank has work left: its line, the report, and what is sent to W&B, which takes two minutes at most,
plus one per artifact."""

_PR_SET_PDEATHSIG = 1


def start_ranks(
    arguments: list[str], ranks: int, logs: Path, restarts: int = 0, restart_delay: float = 0.0
) -> int:
    """Run `maskmill ARGUMENTS` in `ranks` processes; return the exit code of the first that failed, or 0.

    Rank 0 shows its progress in this terminal; all other output goes to rank-N.log in `logs`. SIGTERM, SIGINT and
    SIGUSR1 are forwarded to all ranks, which decide together where to stop. The cause of the first failure is
    printed at the end. After a crash, a kill or a hang all ranks are restarted, up to `restarts` times,
    `restart_delay` seconds later: they resume from the newest checkpoint."""
    own_folder(logs, parents=True)
    with _Signals() as signals:
        for attempt in range(restarts + 1):
            failed = _one_attempt(arguments, ranks, logs, signals)
            if failed is None:
                return 0
            if failed.said():
                print(printable(failed.said()), file=sys.stderr)
            code = failed.code if failed.code > 0 else 128 - failed.code
            if code in QUIET_CODES or signals.received or attempt == restarts:
                break
            how_often = f"restart {attempt + 1} of {restarts} in {restart_delay:g} s"
            line = f"maskmill: restarting from the newest checkpoint: {how_often}"
            print(printable(line), file=sys.stderr, flush=True)
            if signals.wait(restart_delay):
                return EXIT_STOPPED
    return code


def ended_with(code: int, stopped: int) -> int:
    """Return the exit code of a whole training from that of its ranks: `stopped` (run.stopped_exit_code) in place of
    EXIT_STOPPED, but for a study, which knows its trainings by the latter."""
    return stopped if code == EXIT_STOPPED and SUPERVISOR not in os.environ else code


@cache
def tuning() -> dict[str, str]:
    """Return the environment that tunes the heap of a rank: glibc's, or the other allocator if this machine has it."""
    found = find_library(ALLOCATOR) if sys.platform == "linux" else None
    return GLIBC_ENVIRONMENT | ({"LD_PRELOAD": found, **ALLOCATOR_ENVIRONMENT} if found else {})


def end_with_supervisor(environment: Mapping[str, str]) -> None:
    """Have the kernel end this process when the one that started it ends, even by SIGKILL: without it a training would
    hold the run folder, and the GPUs, to its end. A rank is killed; what starts ranks gets SIGTERM, so that they save.
    Does nothing where no supervisor is named, or outside Linux."""
    if SUPERVISOR not in environment or sys.platform != "linux":
        return
    number = signal.SIGKILL if "RANK" in environment else signal.SIGTERM
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != int(environment[SUPERVISOR]):  # it ended before this took effect
        os.kill(os.getpid(), number)


class _Signals:
    """Forwards signals to the ranks, also during their start: none is lost, and none kills a rank that is not ready.
    Ranks start with these signals blocked, and unblock them once they can handle them
    (pretrain/training/progress.py)."""

    PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)

    def __init__(self) -> None:
        self.received = 0
        self._ranks: list[_Rank] = []

    def __enter__(self) -> "_Signals":
        self._before = {number: signal.signal(number, self._pass_on) for number in self.PASSED_ON}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def start(self, arguments: list[str], ranks: int, logs: Path) -> list["_Rank"]:
        """Start the ranks; a signal that arrives meanwhile reaches all of them."""
        port, self._ranks = free_port(), []
        signal.pthread_sigmask(signal.SIG_BLOCK, self.PASSED_ON)  # the ranks inherit this
        try:
            for number in range(ranks):
                self._ranks.append(_Rank(arguments, number, ranks, port, logs / f"rank-{number}.log"))
        except BaseException:
            end_all(self._ranks)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self.PASSED_ON)
        return self._ranks

    def wait(self, seconds: float) -> bool:
        """Return whether a signal has arrived, or arrives within this many seconds."""
        limit = time.monotonic() + seconds
        while not self.received and time.monotonic() < limit:
            time.sleep(0.05)
        return bool(self.received)

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        self.received = number
        for rank in self._ranks:
            rank.signal(number)


def _one_attempt(arguments: list[str], ranks: int, logs: Path, signals: _Signals) -> "_Rank | None":
    """Start the ranks and wait for their end; return the one whose failure was the cause, or None."""
    started = signals.start(arguments, ranks, logs)
    try:
        return _supervise(started)
    finally:
        end_all(started)
        _mend_terminal()


def _mend_terminal() -> None:
    """Show the cursor again, which the live panel of a killed rank has left hidden."""
    if sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        print("\033[?25h", end="", flush=True)


def end_all(ranks: list["_Rank"]) -> None:
    """Kill the ranks that still run, and wait."""
    for rank in ranks:
        rank.signal(signal.SIGKILL)
        rank.process.wait()


class _Rank:
    """A process of the run, and what it wrote to its log in this attempt."""

    def __init__(self, arguments: list[str], number: int, ranks: int, port: int, log: Path) -> None:
        self.number, self._log = number, log
        place = {"RANK": number, "WORLD_SIZE": ranks, "LOCAL_RANK": number, "LOCAL_WORLD_SIZE": ranks}
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, SUPERVISOR: os.getpid()}
        environment = {
            **tuning(),
            **os.environ,
            **{key: str(value) for key, value in {**place, **meeting}.items()},
        }
        self._before = log.stat().st_size if log.exists() else 0
        with open_to_write(log, "ab") as file:
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
        """Send a signal, unless the process has ended."""
        if self.process.poll() is None:
            self.process.send_signal(number)

    def said(self) -> str:
        """Return for people the one line of a user error, or the end of what the rank wrote before it died."""
        with self._log.open("rb") as file:
            file.seek(self._before)
            lines = file.read().decode(errors="replace").strip().splitlines()
        stages = [found for line in lines if (found := stage_in(line))]
        lines = [line for line in lines if not stage_in(line)]
        if self.code in QUIET_CODES:
            return "\n".join(line for line in lines if line.startswith("maskmill: "))
        how = f"killed by {signal.Signals(-self.code).name}" if self.code < 0 else f"exit code {self.code}"
        if self.code == -signal.SIGALRM:
            stage, limit = stages[-1] if stages else ("a stage of it", "its limit")
            how = f"{stage} took longer than {limit}; the stack of each rank is in its log"
        return "\n".join([*lines[-20:], f"maskmill: rank {self.number} ended: {how}; see {self._log}"])


def _supervise(ranks: list[_Rank]) -> _Rank | None:
    """Wait for all ranks; return the one that failed first. Once one has failed or finished, the others, which may
    wait for it forever, get a grace period. A user error (exit code 2) is a cause, never a consequence. Exceeding
    the grace period is a failure as well, unless the ranks were stopped: then the run is saved."""
    failed: _Rank | None = None
    deadline = math.inf
    while running := [rank for rank in ranks if rank.process.poll() is None]:
        if failed is None and (failed := _first_failed(ranks, but=EXIT_STOPPED)):
            deadline = time.monotonic() + (
                KILL_AFTER_END_SECONDS if failed.code == EXIT_USER_ERROR else KILL_AFTER_FAILURE_SECONDS
            )
        elif deadline == math.inf and len(running) < len(ranks):
            deadline = time.monotonic() + KILL_AFTER_END_SECONDS
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    if running and failed is None:
        late = ", ".join(str(rank.number) for rank in running)
        said = f"maskmill: still there {KILL_AFTER_END_SECONDS:g} s after others had ended, and killed: rank {late}"
        print(printable(said), file=sys.stderr)
    ended = [rank for rank in ranks if rank not in running]
    end_all(running)
    mistaken = next((rank for rank in ranks if rank.code == EXIT_USER_ERROR), None)
    return mistaken or failed or _first_failed(ended, but=EXIT_STOPPED) or _first_failed([*ended, *running])


def _first_failed(ranks: list[_Rank], but: int = 0) -> _Rank | None:
    return next((rank for rank in ranks if rank.code not in (0, but)), None)


def free_port() -> int:
    """Return a free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
