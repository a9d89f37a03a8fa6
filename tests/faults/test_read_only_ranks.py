"""A run folder that turns read-only at a save of two ranks: both are told, what was there stays whole, and the same
command goes on."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line import Maskmill, command, hooked
from tests.run_ends import assert_bit_equal

pytestmark = [pytest.mark.slow, pytest.mark.multirank]

RUN = ["run.ranks=2", "train.steps=8", "encoder.dropout=0.1", "zero.stage=1"]
HOOK = """
import os, subprocess, time

def install(disk):
    from pretrain import train
    checkpoint = train.checkpoint

    def turning_read_only(run, *arguments):
        if run.position.step == 6:
            run.saver.wait()
            if run.world.rank == 0:  # with files open for writing the disk itself cannot be made read-only
                subprocess.run(["mount", "--bind", disk, disk], check=True)
                subprocess.run(["mount", "-o", "remount,bind,ro", disk], check=True)
            while not os.statvfs(disk).f_flag & os.ST_RDONLY:
                time.sleep(0.05)
        checkpoint(run, *arguments)

    train.checkpoint = turning_read_only

if os.environ.get("RANK") and os.environ.get("TURNS_READ_ONLY"):
    install(os.environ["TURNS_READ_ONLY"])
"""
SCRIPT = """
import json, os, shutil, subprocess, sys

disk, kept, *command = sys.argv[1:]

def run(**more):
    done = subprocess.run(command, env={**os.environ, **more}, capture_output=True, text=True)
    print(json.dumps([done.returncode, done.stdout, done.stderr]), flush=True)

subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40M", "tmpfs", disk], check=True)
run(TURNS_READ_ONLY=disk)
subprocess.run(["umount", disk], check=True)
run()
shutil.copytree(f"{disk}/run", kept)  # the disk is of this namespace alone
"""


def test_both_ranks_are_told_and_the_same_command_goes_on(
    tiny: list[str], maskmill: Maskmill, tmp_path: Path
) -> None:
    maskmill("train", "demo", *tiny, *RUN, f"run.dir={tmp_path / 'expected'}")
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    train = command("train", "demo", *tiny, *RUN, f"run.dir={disk / 'run'}")
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-c", SCRIPT, disk, kept, *train],
        env=hooked(tmp_path, HOOK, COLUMNS="300", PATH=f"/usr/sbin:/sbin:{os.environ['PATH']}"),
        capture_output=True, text=True, timeout=560, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (code, out, err), (code_after, out_after, err_after) = map(json.loads, done.stdout.splitlines())
    assert code == 2, out + err
    for step in (6, 8):
        told = [line for line in out.splitlines() if f"checkpoint of step {step} not saved" in line]
        assert told, out
        assert all("Read-only file system" in line for line in told)
        assert all("the latest checkpoint is still step 4" in line for line in told)
    assert "Read-only file system" in err.splitlines()[-1]
    assert code_after == 0, out_after + err_after
    assert "resuming from step 4 (bit-exact" in out_after
    for rank in (0, 1):
        assert "Traceback" not in (kept / "logs" / f"rank-{rank}.log").read_text()
    assert_bit_equal(tmp_path / "expected", kept)
