"""docker/healthcheck.sh on this machine; tests/docker has it in a container."""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from pretrain.run.heartbeat import HEARTBEAT
from tests.command_line import ROOT


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder whose metrics are two hours old, in a container that is older."""
    folder = tmp_path / "run"
    folder.mkdir()
    stand_in = 'if [[ ${!#} == /proc/1 ]]; then echo 0; else exec /usr/bin/stat "$@"; fi'
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/stat").write_text(f"#!/usr/bin/env bash\n{stand_in}\n")
    (tmp_path / "bin/stat").chmod(0o755)
    said(folder, "running")
    return folder


def said(run: Path, status: str) -> None:
    for name, words in (("summary.json", {"status": status}), ("metrics.jsonl", {"step": 1})):
        (run / name).write_text(json.dumps(words, indent=1))
        os.utime(run / name, (time.time() - 7200,) * 2)


def begun(run: Path, seconds_ago: int) -> None:
    """An attempt of the run began; `said` is of two hours ago."""
    (run / "run.json").write_text("{}")
    os.utime(run / "run.json", (time.time() - seconds_ago,) * 2)


def check(run: Path) -> tuple[int, str]:
    path = f"{run.parent}/bin:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", str(ROOT / "docker/healthcheck.sh")],
        cwd=run.parent,
        env=os.environ | {"PATH": path, "HEALTH_RUN": str(run), "HEALTH_SECONDS": "3600"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def test_a_run_with_heartbeats_between_two_lines_of_its_log_is_healthy(run: Path) -> None:
    code, words = check(run)
    assert code == 1
    assert words.startswith(f"unhealthy: nothing new in {run} for 72")
    (run / HEARTBEAT).write_text("{}")
    assert check(run) == (0, "healthy\n")


@pytest.mark.parametrize("status", ["finished", "stopped", "failed"])
def test_a_run_that_has_ended_is_healthy(run: Path, status: str) -> None:
    begun(run, seconds_ago=9000)
    said(run, status)
    assert check(run) == (0, "healthy\n")


@pytest.mark.parametrize(("status", "well"), [("finished", True), ("stopped", False), ("failed", False)])
def test_an_attempt_that_hangs_at_its_start_is_not_healthy_because_the_one_before_ended(
    run: Path, status: str, well: bool
) -> None:
    said(run, status)
    begun(run, seconds_ago=60)
    assert check(run) == (0, "healthy\n"), "it has only begun"
    begun(run, seconds_ago=3700)
    code, words = check(run)
    assert (code == 0) == well, words
    assert words.startswith("healthy" if well else f"unhealthy: nothing new in {run} for 37")
