"""Supervised local ranks: they know their place, signals reach all, and the first failure is the one that is told."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from launch import ranks
from pretrain.world import is_launched

SCRIPT = """
import os, signal, sys, time
rank = int(os.environ["RANK"])
{body}
"""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Runs `body` as every rank in place of the command line; returns the exit code."""
    (tmp_path / "launch").mkdir()
    monkeypatch.setattr(ranks, "GRACE", 0.5)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def run(body: str, count: int = 2) -> int:
        (tmp_path / "launch" / "cli.py").write_text(SCRIPT.format(body=body))
        return ranks.start_ranks([], count, tmp_path / "logs")

    return run


def test_every_rank_knows_its_place(start, tmp_path: Path, capfd) -> None:  # type: ignore[no-untyped-def]
    names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR"
    assert start(f"print(*[os.environ[n] for n in {names.split()!r}])", 3) == 0
    assert capfd.readouterr().out == "0 3 0 3 127.0.0.1\n"
    assert (tmp_path / "logs" / "rank-2.log").read_text() == "2 3 2 3 127.0.0.1\n"


def test_a_mistake_on_one_rank_is_one_line_though_others_crash_over_it(start, capfd) -> None:  # type: ignore[no-untyped-def]
    body = """
if rank == 1:
    time.sleep(0.3)
    sys.exit(print("maskmill: shard 7 is damaged", file=sys.stderr) or 2)
raise RuntimeError("connection closed by peer")
"""
    assert start(body) == 2
    assert capfd.readouterr().err == "maskmill: shard 7 is damaged\n"


def test_a_crash_is_shown_with_its_rank_and_the_waiting_ones_end(start, capfd) -> None:  # type: ignore[no-untyped-def]
    began = time.monotonic()
    assert start("time.sleep(60) if rank == 0 else os.kill(os.getpid(), signal.SIGKILL)") == 128 + 9
    assert time.monotonic() - began < 20
    assert "rank 1 ended: killed by SIGKILL" in capfd.readouterr().err


def test_a_signal_reaches_all_ranks(start, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    body = """
signal.signal(signal.SIGUSR1, lambda *_: (open(f"got-{rank}", "w").close(), sys.exit(3)))
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
open(f"ready-{rank}", "w").close()
time.sleep(60)
"""

    def once_ready() -> None:
        while not all((tmp_path / f"ready-{rank}").exists() for rank in range(2)):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGUSR1)

    threading.Thread(target=once_ready).start()
    assert start(body) == 3
    assert (tmp_path / "got-0").exists()
    assert (tmp_path / "got-1").exists()


def test_ranks_of_a_launcher_are_recognised() -> None:
    assert not is_launched({})
    assert is_launched({"RANK": "0", "WORLD_SIZE": "1"})
    batch_script = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"}
    assert not is_launched(batch_script), "a batch script may start its own local ranks"
    assert is_launched(batch_script | {"SLURM_STEP_ID": "0"})
    assert not is_launched({"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"})
