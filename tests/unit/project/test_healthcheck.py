"""docker/healthcheck.sh on this machine, whose clocks the tests set; tests/docker has it in a container."""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from pretrain.run.files import HEARTBEAT
from tests.command_line import ROOT

HOUR, YEAR, START = 3600, 365 * 86_400, 5000
JUMPS = [HOUR, -HOUR, YEAR, -YEAR]
"""Seconds by which a clock is set forward or back."""
STAND_INS = {
    "cut": 'if [[ ${!#} == /proc/uptime ]]; then cat "$STAND_INS/uptime"; else exec /usr/bin/cut "$@"; fi',
    "date": 'exec /usr/bin/date --date="$(<"$STAND_INS/jump") seconds" "$@"',
    "readlink": 'if [[ $1 == /proc/self/* ]]; then cat "$STAND_INS/container"; else exec /usr/bin/readlink "$@"; fi',
}


class Container:
    """A container with a run folder, and the clocks that its checks read."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.run, self.clocks = folder, folder / "run", folder / "bin"
        self.up, self.jump = START, 0
        """Seconds since the machine started, and by which its clock was set."""
        self.notes = folder
        self.clocks.mkdir()
        self.run.mkdir()
        for name, script in STAND_INS.items():
            (self.clocks / name).write_text(f"#!/usr/bin/env bash\n{script}\n")
            (self.clocks / name).chmod(0o755)
        self.starts("pid:[1]")

    def starts(self, name: str) -> None:
        """Another container takes over the run."""
        (self.clocks / "container").write_text(f"{name}\n")

    def write(self, name: str, words: dict[str, object], ago: float = 0) -> None:
        """Write one of the run's files, dated by the machine's clock."""
        (self.run / name).write_text(json.dumps(words, indent=1))
        os.utime(self.run / name, (time.time() + self.set_by() - ago,) * 2)

    def set_by(self) -> int:
        """Seconds between the machine's clock and this one's."""
        return self.jump + self.up - START

    def check(self, later: int = 0) -> tuple[int, str]:
        """The exit code and the words of a check so many seconds after the last one."""
        self.up += later
        (self.clocks / "uptime").write_text(f"{self.up}\n")
        (self.clocks / "jump").write_text(f"{self.set_by()}\n")
        own = {"PATH": f"{self.clocks}:{os.environ['PATH']}", "STAND_INS": str(self.clocks)}
        run = {"HEALTH_RUN": str(self.run), "HEALTH_SECONDS": "3600", "HEALTH_NOTES": str(self.notes)}
        done = subprocess.run(
            ["bash", str(ROOT / "docker/healthcheck.sh")],
            cwd=self.folder, env=os.environ | own | run, capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout


@pytest.fixture
def container(tmp_path: Path) -> Container:
    """A container whose run last wrote two hours ago."""
    container = Container(tmp_path)
    container.write("summary.json", {"status": "running"}, ago=7200)
    container.write("metrics.jsonl", {"step": 1}, ago=7200)
    return container


HEALTHY = (0, "healthy\n")


def test_a_run_with_heartbeats_between_two_lines_of_its_log_is_healthy(container: Container) -> None:
    assert container.check() == HEALTHY, "the container has only started"
    assert container.check(later=3600) == HEALTHY
    assert container.check(later=1) == (1, f"unhealthy: nothing new in {container.run} for 3601 s\n")
    for name in (HEARTBEAT, "metrics.jsonl"):
        container.write(name, {"step": 2})
        assert container.check(later=1) == HEALTHY
        assert container.check(later=3601)[0] == 1


@pytest.mark.parametrize("jump", JUMPS)
def test_a_clock_that_jumps_makes_no_run_unhealthy(container: Container, jump: int) -> None:
    container.write(HEARTBEAT, {"step": 1})
    assert container.check() == HEALTHY
    container.jump = jump  # in an evaluation: the run writes nothing before and after for a while
    for _ in range(3):
        assert container.check(later=60) == HEALTHY
    container.write(HEARTBEAT, {"step": 2})
    assert container.check(later=3500) == HEALTHY
    container.jump = 0
    assert container.check(later=60) == HEALTHY


@pytest.mark.parametrize("skew", JUMPS)
def test_dates_of_a_file_server_with_another_clock_are_not_compared_with_this_ones(
    container: Container, skew: int
) -> None:
    for _ in range(3):
        container.write(HEARTBEAT, {"step": 2}, ago=-skew)
        assert container.check(later=1800) == HEALTHY


@pytest.mark.parametrize("jump", JUMPS)
def test_a_run_that_hangs_is_found_whatever_its_files_are_dated(container: Container, jump: int) -> None:
    container.write(HEARTBEAT, {"step": 2}, ago=-jump)
    assert container.check() == HEALTHY
    container.jump = -jump
    assert container.check(later=3601) == (1, f"unhealthy: nothing new in {container.run} for 3601 s\n")


@pytest.mark.parametrize("status", ["finished", "stopped", "failed"])
def test_a_run_that_has_ended_is_healthy(container: Container, status: str) -> None:
    container.write("run.json", {}, ago=9000)
    container.write("summary.json", {"status": status}, ago=7200)
    assert container.check() == HEALTHY
    assert container.check(later=9000) == HEALTHY


@pytest.mark.parametrize(("status", "well"), [("finished", True), ("stopped", False), ("failed", False)])
def test_an_attempt_that_hangs_at_its_start_is_not_healthy_because_the_one_before_ended(
    container: Container, status: str, well: bool
) -> None:
    container.write("summary.json", {"status": status}, ago=7200)
    assert container.check() == HEALTHY
    container.write("run.json", {}, ago=60)
    assert container.check(later=3700) == HEALTHY, "it has only begun"
    code, words = container.check(later=3700)
    assert (code == 0) == well, words
    assert words.startswith("healthy" if well else f"unhealthy: nothing new in {container.run} for 37")


@pytest.mark.parametrize("jump", JUMPS)
def test_attempts_are_told_apart_by_number_where_a_clock_was_set_between_them(
    container: Container, jump: int
) -> None:
    container.write(HEARTBEAT, {"attempt": 9})
    container.write("summary.json", {"status": "failed"})
    container.write("run.json", {"attempts": 10}, ago=-jump)
    container.check()
    assert container.check(later=3601)[0] == 1, "the tenth hangs at its start"
    container.write(HEARTBEAT, {"attempt": 10})
    container.check()
    assert container.check(later=3601) == HEALTHY, "the tenth has failed"


def test_a_container_does_not_count_the_silence_before_it(container: Container) -> None:
    container.check()
    assert container.check(later=3601)[0] == 1
    container.starts("pid:[2]")
    assert container.check() == HEALTHY
    assert container.check(later=3601)[0] == 1


@pytest.mark.parametrize("since", ["", "1x", "x[$(touch run/executed)]"])
def test_notes_without_a_number_begin_anew_and_execute_nothing(container: Container, since: str) -> None:
    container.check()
    (note,) = container.notes.glob(".maskmill-health-*")
    _, signs = note.read_text().split("\n", 1)
    note.write_text(f"{since}\n{signs}")
    assert container.check(later=3601) == HEALTHY
    assert not (container.run / "executed").exists()
    assert container.check(later=3601)[0] == 1


def test_where_nothing_can_be_noted_the_run_is_not_judged(container: Container) -> None:
    container.notes = container.folder / "none"
    container.check()
    code, words = container.check(later=9000)
    assert code == 0
    assert words.startswith(f"healthy, as far as can be said: {container.notes}/.maskmill-health-")
    assert words.endswith(" cannot be written\n")
