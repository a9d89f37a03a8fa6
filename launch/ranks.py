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

GRACE = 15.0
"""Seconds that the other ranks get to end by themselves after one has failed or a signal was passed on."""


def started_by_launcher() -> bool:
    """Whether this process is already one rank of many (torchrun, deepspeed, or srun with several tasks)."""
    return "RANK" in os.environ or (
        int(os.environ.get("SLURM_NTASKS", "1")) > 1 and "SLURM_PROCID" in os.environ
    )


def start_ranks(arguments: list[str], ranks: int, logs: Path) -> int:
    """Runs `maskmill ARGUMENTS` in `ranks` processes and returns the exit code of the first that failed, or 0.

    Rank 0 writes to this terminal, the others to rank-N.log in `logs`. SIGTERM, SIGINT and SIGUSR1 go on to
    all ranks, which decide together where to stop."""
    logs.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    processes = [_start(arguments, rank, ranks, port, logs) for rank in range(ranks)]

    def pass_on(number: int, _frame: FrameType | None) -> None:
        for process in processes:
            if process.poll() is None:
                process.send_signal(number)

    before = {n: signal.signal(n, pass_on) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)}
    try:
        return _supervise(processes, logs)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()


def _start(arguments: list[str], rank: int, ranks: int, port: int, logs: Path) -> subprocess.Popen[bytes]:
    environment = os.environ | {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    command = [sys.executable, "-m", "launch.cli", *arguments]
    if rank == 0:
        return subprocess.Popen(command, env=environment)
    with (logs / f"rank-{rank}.log").open("ab") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log)


def _supervise(processes: list[subprocess.Popen[bytes]], logs: Path) -> int:
    """Waits for all ranks. Once one has failed the others, who may wait for it for ever, get a grace period."""
    failed: tuple[int, int] | None = None
    deadline = 0.0
    while any(process.poll() is None for process in processes):
        for rank, process in enumerate(processes):
            if failed is None and process.poll() not in (None, 0):
                failed = (rank, int(process.returncode))
                deadline = time.monotonic() + GRACE
        if failed is not None and time.monotonic() > deadline:
            for process in processes:
                if process.poll() is None:
                    process.kill()
        time.sleep(0.05)
    codes = [int(process.returncode) for process in processes]
    if failed is None:
        failed = next(((rank, code) for rank, code in enumerate(codes) if code), None)
    if failed is None:
        return 0
    rank, code = failed
    if rank > 0:
        tail = (logs / f"rank-{rank}.log").read_text(errors="replace").strip().splitlines()
        reason = f"exit code {code}" if code > 0 else f"killed by {signal.Signals(-code).name}"
        print(
            f"rank {rank} ended: {reason}. {tail[-1] if tail else ''} ({logs}/rank-{rank}.log)",
            file=sys.stderr,
        )
    return code if code > 0 else 128 - code


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
