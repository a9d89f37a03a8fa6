"""A short storm: runs that are killed at random moments and resumed end bit-equal. `make storm` is the long one."""

import re
import subprocess
import sys

import pytest

from tests.command_line import ROOT, environ

pytestmark = pytest.mark.slow


@pytest.mark.multirank
def test_a_short_storm() -> None:
    # of seed 59485 every kind of occasion is among the six kills
    command = [sys.executable, str(ROOT / "tests/faults/storm.py"), "--runs", "3", "--seed", "59485"]
    environment = environ(OMP_NUM_THREADS="1")
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=540, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r", [1-9]\d* kills; ", done.stdout), done.stdout
    assert "Bit-equal to the reference in the end: 3 of 3." in done.stdout
