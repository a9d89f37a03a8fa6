"""A process that hangs is ended with its stack in its log, whatever it was at; one that goes on is left alone."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pretrain.config.settings import RunSettings
from pretrain.distributed.watchdog import Watchdog, hang_in, patience, stage_in
from tests.command_line import ROOT, disarm

SCRIPT = """
import sys, time
from pathlib import Path
from pretrain.config.settings import RunSettings
from pretrain.distributed import watchdog

watchdog.STACK_SECONDS = 0.6
dog = watchdog.Watchdog(RunSettings(step_timeout={step}, stage_limit={stage}))
dog.log_in(Path(sys.argv[1]), 0)

def hangs():
    time.sleep(60)

{body}
print("went on")
"""


def ended(folder: Path, body: str, step: float, stage: float) -> tuple[int, str, str]:
    """Runs `body` as a rank; its exit code, output and log."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(body=body, step=step, stage=stage), str(folder)],
        cwd=ROOT, capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip
    assert done.stderr == "", "a terminal has none of it"
    return done.returncode, done.stdout, (folder / "logs" / "rank-0.log").read_text()


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ("dog.stage('connecting'); hangs()", "connecting (run.stage_limit: 1 s)"),
        (
            "dog.stage('connecting')\nwith dog.steps():\n    hangs()",
            "a step, an evaluation or a save (run.step_timeout: 1 s)",
        ),
        ("with dog.steps():\n    pass\nhangs()", "leaving the training loop (run.stage_limit: 1 s)"),
        ("import atexit; atexit.register(hangs); dog.stage('leaving')", "leaving (run.stage_limit: 1 s)"),
        (
            "import threading; threading.Thread(target=hangs).start(); dog.stage('leaving')",
            "leaving (run.stage_limit: 1 s)",
        ),
    ],
    ids=["stage", "step", "after the loop", "at exit", "a thread at exit"],
)
def test_a_hang_is_written_down_and_ended(tmp_path: Path, body: str, name: str) -> None:
    code, _, log = ended(tmp_path, body, step=1, stage=1)
    assert code == -signal.SIGALRM, log
    told, _, stack = log.partition("Timeout (0:00:01)!")
    assert told.splitlines()[-1].endswith(f"] {name}")
    assert "in hangs" in stack
    what, setting = re.fullmatch(r"(.+) \((run\.\w+): 1 s\)", name).groups()
    *_, why = log.splitlines()
    assert re.match(
        rf"maskmill: rank 0 on \S+ ends: {what} took longer than {setting} \(1 s\); its stacks", why
    )
    assert "goes on from its newest checkpoint" in why


def test_a_hang_is_told_before_the_end(tmp_path: Path) -> None:
    body = """
dog.on_hang = lambda why: Path(sys.argv[1], "told").write_text(why)
with dog.steps():
    hangs()"""
    code, _, log = ended(tmp_path, body, step=1, stage=1)
    assert code == -signal.SIGALRM
    assert (
        tmp_path / "told"
    ).read_text() == "a step, an evaluation or a save took longer than run.step_timeout (1 s)"
    when, what = hang_in(log) or (0.0, "")
    assert abs(time.time() - when) < 60
    assert what == "a step, an evaluation or a save took longer than run.step_timeout"
    assert hang_in(log.replace("Timeout (", "")) is None


def test_what_is_told_of_a_hang_does_not_hold_the_end_up(tmp_path: Path) -> None:
    body = "dog.on_hang = lambda why: hangs()\nwith dog.steps():\n    hangs()"
    code, _, _ = ended(tmp_path, body, step=1, stage=1)
    assert code == -signal.SIGALRM


def test_what_goes_on_is_left_alone(tmp_path: Path) -> None:
    """Stages and steps that take longer than their limits together, each under its own."""
    body = """
began = time.monotonic()
for name in "abc":
    dog.stage(name)
    time.sleep(1)
with dog.steps():
    for _ in range(3):
        dog.feed()
        time.sleep(0.2)
for name in "def":
    dog.stage(name)
    time.sleep(1)
"""
    code, said, log = ended(tmp_path, body, step=0.5, stage=2.5)
    assert (code, said) == (0, "went on\n")
    assert re.findall(r"\] (.+) \(", log) == ["a", "b", "c", "a step, an evaluation or a save",
                                               "leaving the training loop", "d", "e", "f"]  # fmt: skip
    assert "Timeout" not in log


def test_what_ends_between_the_stacks_and_the_end_goes_on(tmp_path: Path) -> None:
    """And its next stage is watched."""
    body = "watchdog.STACK_SECONDS = 3\ndog.stage('slow'); time.sleep(3); dog.stage('next'); hangs()"
    code, _, log = ended(tmp_path, body, step=1, stage=1)
    assert code == -signal.SIGALRM
    assert [line.split(" ends: ")[1].split(" took")[0] for line in log.splitlines() if " ends: " in line] == [
        "slow",
        "next",
    ]


def test_no_limit_is_none(tmp_path: Path) -> None:
    """Nor does that of the stage before go on."""
    body = "dog.stage('connecting')\nwith dog.steps():\n    time.sleep(1.5)"
    assert ended(tmp_path, body, step=0, stage=0.5)[0] == 0


def test_a_log_names_its_stages() -> None:
    line = "[2026-03-04 05:06:07] loading a checkpoint or init_from (run.stage_limit: 1800 s)\n"
    assert stage_in(line) == ("loading a checkpoint or init_from", "run.stage_limit")
    assert stage_in("step 3 (run.stage_limit: 1800 s)") is None


def test_a_run_folder_that_has_gone_is_not_made_anew(tmp_path: Path) -> None:
    """It could not come back under its name."""
    dog = Watchdog(RunSettings())
    try:
        dog.log_in(tmp_path / "gone", 0)
        dog.stage("connecting")
    finally:
        disarm()
    assert not (tmp_path / "gone").exists()


def test_ranks_wait_for_each_other_for_longer_than_both_limits() -> None:
    assert patience(RunSettings(step_timeout=5000, stage_limit=10)).total_seconds() > 5000
    assert patience(RunSettings(step_timeout=10, stage_limit=7000)).total_seconds() > 7000
    assert patience(RunSettings(step_timeout=10, stage_limit=0)).total_seconds() == 1800
