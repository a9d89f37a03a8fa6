"""A short storm: runs that are killed at random moments and resumed end bit-equal. `make storm` is the long one."""

import os
import subprocess
import sys

import pytest

from tests.command_line import ROOT


@pytest.mark.multirank
def test_a_short_storm() -> None:
    command = [sys.executable, str(ROOT / "tests/faults/storm.py"), "--runs", "3", "--seed", "7"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=540, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Bit-equal to the reference in the end: 3 of 3." in done.stdout
