"""Supervised local ranks: they know their place, signals reach all, and the first failure is the one that is told."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from data_pipeline.errors import EXIT_STOPPED
from launch import ranks
from pretrain.distributed.launch_env import is_launched
from tests.command_line import ROOT, environ, running, until

SCRIPT = """
import os, signal, sys, time
rank = int(os.environ["RANK"])
{body}
"""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Runs `body` as every rank in place of the command line; returns the exit code."""
    (tmp_path / "launch").mkdir()
    monkeypatch.setattr(ranks, "KILL_AFTER_FAILURE_SECONDS", 0.5)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def run(body: str, count: int = 2, restarts: int = 0, delay: float = 0.0) -> int:
        (tmp_path / "launch" / "cli.py").write_text(SCRIPT.format(body=body))
        return ranks.start_ranks([], count, tmp_path / "logs", restarts, delay)

    return run


def test_every_rank_knows_its_place(start, tmp_path: Path, capfd) -> None:  # type: ignore[no-untyped-def]
    names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR"
    assert start(f"print(*[os.environ[n] for n in {names.split()!r}])", 3) == 0
    assert capfd.readouterr().out == "0 3 0 3 127.0.0.1\n"
    assert (tmp_path / "logs" / "rank-2.log").read_text() == "2 3 2 3 127.0.0.1\n"


def test_ranks_take_another_allocator_where_there_is_one_unless_the_user_says_otherwise(
    start,  # type: ignore[no-untyped-def]
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks.tuning.cache_clear()
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    monkeypatch.setattr(ranks, "find_library", {"tcmalloc_minimal": "libm.so.6"}.get)
    assert start("print(os.environ['LD_PRELOAD'])", 1) == 0
    monkeypatch.setenv("LD_PRELOAD", "")
    assert start("print(os.environ['LD_PRELOAD'])", 1) == 0
    monkeypatch.setattr(ranks, "find_library", {}.get)
    ranks.tuning.cache_clear()
    assert "LD_PRELOAD" not in ranks.tuning()
    ranks.tuning.cache_clear()
    assert capfd.readouterr().out == "libm.so.6\n\n"


def test_a_mistake_on_one_rank_is_one_line_though_others_crash_over_it(start, capfd) -> None:  # type: ignore[no-untyped-def]
    body = """
if rank == 1:
    time.sleep(0.3)
    sys.exit(print("maskmill: shard 7 is damaged", file=sys.stderr) or 2)
raise RuntimeError("connection closed by peer")
"""
    assert start(body) == 2
    assert capfd.readouterr().err == "maskmill: shard 7 is damaged\n"


def test_the_first_rank_may_take_its_time_to_say_what_all_refuse(start, capfd) -> None:  # type: ignore[no-untyped-def]
    """It may have W&B to tell before: longer than after a crash (0.5 s here)."""
    body = """
if rank == 0:
    time.sleep(1.5)
    print("maskmill: shard 7 is damaged", file=sys.stderr)
sys.exit(2)
"""
    assert start(body) == 2
    assert capfd.readouterr().err == "maskmill: shard 7 is damaged\n"


def test_a_crash_is_shown_with_its_rank_and_the_waiting_ones_end(start, capfd) -> None:  # type: ignore[no-untyped-def]
    began = time.monotonic()
    assert start("time.sleep(60) if rank == 0 else os.kill(os.getpid(), signal.SIGKILL)") == 128 + 9
    assert time.monotonic() - began < 20
    assert "rank 1 ended: killed by SIGKILL" in capfd.readouterr().err


@pytest.mark.parametrize(("code", "comes_to"), [(3, 3), (0, 128 + 9)])
def test_a_rank_that_stays_when_another_has_come_to_its_end_is_ended(
    start, monkeypatch: pytest.MonkeyPatch, capfd, code: int, comes_to: int
) -> None:  # type: ignore[no-untyped-def]
    """It waits for collectives that never come, say. After a signal the run is saved, and stays stopped."""
    monkeypatch.setattr(ranks, "KILL_AFTER_END_SECONDS", 0.5)
    assert start(f"time.sleep(60) if rank == 0 else sys.exit({code})") == comes_to
    said = capfd.readouterr().err
    assert "maskmill: still there 0.5 s after others had ended, and killed: rank 0" in said
    assert ("rank 0 ended: killed by SIGKILL" in said) == (code == 0)


@pytest.mark.parametrize("code", [3, 0])
def test_the_first_rank_may_take_its_time_at_the_end(start, capfd, code: int) -> None:  # type: ignore[no-untyped-def]
    """It has a report to write and others to tell: longer than after a failure (0.5 s here)."""
    assert start(f"time.sleep(1.5 * (rank == 0)); sys.exit({code})") == code
    assert capfd.readouterr().err == ""


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


FALLS_TWICE = """
import pathlib
pathlib.Path(f"attempts-{rank}").open("a").write("x")
if rank == 1 and len(pathlib.Path("attempts-1").read_text()) < 3:
    print("it fell", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(0.3)
"""


def test_ranks_that_were_killed_are_started_again(start, tmp_path: Path, capfd) -> None:  # type: ignore[no-untyped-def]
    assert start(FALLS_TWICE, restarts=2) == 0
    assert [(tmp_path / f"attempts-{rank}").read_text() for rank in range(2)] == ["xxx", "xxx"]
    said = capfd.readouterr().err
    assert said.count("it fell\nmaskmill: rank 1 ended: killed by SIGKILL") == 2
    assert "restart 2 of 2" in said


def test_after_the_last_restart_the_failure_is_the_run_s(start, capfd) -> None:  # type: ignore[no-untyped-def]
    assert start(FALLS_TWICE, restarts=1) == 128 + 9
    assert "restart 1 of 1" in capfd.readouterr().err


HANGS = f"""
sys.path.insert(0, {str(ROOT)!r})
from pretrain.config.settings import RunSettings
from pretrain.distributed import watchdog
watchdog.STACK_SECONDS = 0.2
dog = watchdog.Watchdog(RunSettings(stage_limit=1.5))
dog.stage("importing torch")
dog.stage("connecting")
if rank == 1 and not os.path.exists("done"):
    open("done", "w").close()
    time.sleep(60)
"""


def test_a_hanging_start_is_named_and_ranks_are_started_again(start, tmp_path: Path, capfd) -> None:  # type: ignore[no-untyped-def]
    assert start(HANGS, restarts=1) == 0
    said = capfd.readouterr().err
    assert (
        "maskmill: rank 1 ended: connecting took longer than run.stage_limit; the stack of each rank" in said
    )
    assert "in <module>" in said
    assert "importing torch" not in said
    assert "restart 1 of 1" in said
    log = (tmp_path / "logs" / "rank-1.log").read_text()
    assert log.index("connecting (run.stage_limit: 1.5 s)") < log.index("Timeout (0:00:01.5")


@pytest.mark.parametrize("code", [2, 3])
def test_what_would_come_again_or_is_wanted_is_not_retried(start, tmp_path: Path, code: int) -> None:  # type: ignore[no-untyped-def]
    assert start(f'open(f"attempts-{{rank}}", "a").write("x"); sys.exit({code})', restarts=5) == code
    assert (tmp_path / "attempts-0").read_text() == "x"


def test_a_signal_ends_the_wait_for_a_restart(start, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    def once_dead() -> None:
        while not (tmp_path / "dead").exists():
            time.sleep(0.01)
        time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=once_dead)
    thread.start()
    assert start('open("dead", "w").close(); sys.exit(1)', count=1, restarts=5, delay=600.0) == 3
    thread.join()


def test_a_signal_before_a_rank_can_handle_it_is_kept_for_it(start, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    body = """
open(f"started-{rank}", "w").close()
time.sleep(1.5)                         # as long as imports take: the signal comes meanwhile
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
time.sleep(60)
"""

    def once_started() -> None:
        while not all((tmp_path / f"started-{rank}").exists() for rank in range(2)):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=once_started)
    thread.start()
    assert start(body) == 3
    thread.join()


@pytest.mark.parametrize("is_rank", [True, False])
def test_processes_end_with_their_supervisor(is_rank: bool, tmp_path: Path) -> None:
    """A rank is killed; what starts ranks is told to end, so that they save."""
    script = f"""
import os, pathlib, signal, sys, time
from pretrain.distributed.launch_env import SUPERVISOR
from launch.ranks import end_with_supervisor
if SUPERVISOR not in os.environ:
    import subprocess
    subprocess.Popen([sys.executable, __file__], env=os.environ | {{SUPERVISOR: str(os.getpid())}}).wait()
end_with_supervisor(os.environ)

def told(*_):
    pathlib.Path({str(tmp_path / "told")!r}).write_text("")
    if {not is_rank}:
        sys.exit(3)

signal.signal(signal.SIGTERM, told)
pathlib.Path({str(tmp_path / "rank")!r}).write_text(str(os.getpid()))
time.sleep(300)
"""
    (tmp_path / "script.py").write_text(script)
    more = {"RANK": "0"} if is_rank else {}
    parent = subprocess.Popen([sys.executable, str(tmp_path / "script.py")], env=environ(**more))
    until(lambda: (tmp_path / "rank").exists() and (tmp_path / "rank").read_text())
    rank = int((tmp_path / "rank").read_text())
    os.kill(rank, 0)
    parent.kill()
    parent.wait()
    until(lambda: not running(rank), said=lambda: "the rank outlives its supervisor")
    assert (tmp_path / "told").exists() != is_rank


def test_ranks_of_a_launcher_are_recognised() -> None:
    assert not is_launched({})
    assert is_launched({"RANK": "0", "WORLD_SIZE": "1"})
    batch_script = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"}
    assert not is_launched(batch_script), "a batch script may start its own local ranks"
    assert is_launched(batch_script | {"SLURM_STEP_ID": "0"})
    assert not is_launched({"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"})


@pytest.mark.parametrize(("code", "ends"), [(0, 0), (1, 1), (2, 2), (3, 143), (137, 137)])
def test_the_code_of_a_stopped_training_is_that_of_the_settings(
    code: int, ends: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ranks.SUPERVISOR, raising=False)
    assert ranks.ended_with(code, 143) == ends
    assert ranks.ended_with(code, 3) == code
    monkeypatch.setenv(ranks.SUPERVISOR, "1")
    assert ranks.ended_with(code, 143) == code, "a study knows its trainings by 3"


def test_a_rank_that_another_launcher_started_ends_with_it_itself() -> None:
    from pretrain.config.settings import RunSettings
    from pretrain.train import stopped_code

    run = RunSettings(stopped_exit_code=143)
    assert stopped_code(run, {}) == 143
    assert stopped_code(run, {ranks.SUPERVISOR: "1"}) == EXIT_STOPPED == 3, "the launcher knows it by 3"
