"""A disk that fills up under `train` and `export`, a folder that turns read-only, a clock that jumps: told, what was
there stays whole, and the same command goes on.

A real one: a small tmpfs, in a mount namespace of its own. One process runs all commands of it, in the order of the
script below; the tests look at what they said and left."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pretrain.report.history import last_sign
from pretrain.report.record import read_run
from tests.command_line import ROOT
from tests.run_ends import assert_bit_equal

pytestmark = pytest.mark.slow

RUN = ["run.ranks=1", "train.steps=8", "encoder.dropout=0.1", "checkpoint.keep=2"]
SCRIPT = """
import contextlib, hashlib, io, json, os, shutil, subprocess, sys, time
from datetime import datetime, timedelta
from pathlib import Path

os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", COLUMNS="300")
from launch import cli
from pretrain import train as training

checkpoint = training.checkpoint
settings, here, real = sys.argv[1:], Path.cwd(), sys.stdout

def maskmill(name, *arguments):
    out, err, code = io.StringIO(), io.StringIO(), 0
    sys.argv = ["maskmill", *arguments]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
    found = {str(p.relative_to(here)): hashlib.sha256(p.read_bytes()).hexdigest()
             for top in ("disk", "small") for p in (here / top).rglob("*") if p.is_file()}
    print(json.dumps([name, code, out.getvalue(), err.getvalue(), found]), file=real, flush=True)

def mount(*arguments):
    subprocess.run(["mount", *arguments], check=True)

def fill():
    with open("disk/filler", "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))

def filling(run, *arguments):
    if run.position.step == 6:
        run.saver.wait()
        fill()
    checkpoint(run, *arguments)

def turning_read_only(run, *arguments):
    if run.position.step == 6:
        run.saver.wait()
        mount("--bind", "disk", "disk")  # with files open for writing the disk itself cannot be made read-only
        mount("-o", "remount,bind,ro", "disk")
    checkpoint(run, *arguments)

class Set(datetime):
    ahead = timedelta()

    @classmethod
    def now(cls, zone=None):
        return datetime.now(zone) + cls.ahead

def jumping(run, *arguments):
    run.saver.wait()
    hours = {2: 1, 4: 0, 6: -1, 8: 0}[run.position.step]
    time.time, Set.ahead = lambda: clock() + 3600 * hours, timedelta(hours=hours)
    for name, module in list(sys.modules.items()):  # those that know the class by its name
        if name.startswith(("data_pipeline", "pretrain", "launch")) and vars(module).get("datetime") is datetime:
            module.datetime = Set
    checkpoint(run, *arguments)

clock = time.time
(here / "disk").mkdir()
(here / "small").mkdir()
train = ["train", "demo", *settings]
maskmill("reference", *train, f"run.dir={here}/expected")
mount("-t", "tmpfs", "-o", "size=40M", "tmpfs", "disk")
training.checkpoint = filling  # the start looks whether there is room: it goes later, to somebody else
maskmill("full", *train, f"run.dir={here}/disk/run")
training.checkpoint = checkpoint
os.unlink("disk/filler")
maskmill("room", *train, f"run.dir={here}/disk/run")
mount("-t", "tmpfs", "-o", "size=100k", "tmpfs", "small")
maskmill("export full", "export", "disk/run", "--out", "small/model")
mount("-o", "remount,size=40M", "small")
maskmill("export room", "export", "disk/run", "--out", "small/model")
maskmill("export", "export", "disk/run")
fill()
maskmill("export again full", "export", "disk/run")
os.unlink("disk/filler")
shutil.copytree("disk/run", "after")
shutil.rmtree("disk/run")
training.checkpoint = turning_read_only
maskmill("read only", *train, f"run.dir={here}/disk/other")
training.checkpoint = checkpoint
subprocess.run(["umount", "disk"], check=True)
maskmill("writable", *train, f"run.dir={here}/disk/other")
shutil.copytree("disk/other", "written")
training.checkpoint = jumping
maskmill("clock", *train, f"run.dir={here}/jumped")
time.time = clock
"""


class Said(NamedTuple):
    """What a command said, and the hashes of all files that it left on the disks."""

    code: int
    out: str
    err: str
    files: dict[str, str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("full")


@pytest.fixture(scope="module")
def said(tiny: list[str], folder: Path) -> dict[str, Said]:
    unshare = ["unshare", "--user", "--map-root-user", "--mount"]
    environment: dict[str, Any] = {"PYTHONPATH": str(ROOT), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    result = subprocess.run(
        [*unshare, sys.executable, "-c", SCRIPT, *tiny, *RUN],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=560, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    rows = map(json.loads, result.stdout.splitlines())
    return {name: Said(code, out, err, files) for name, code, out, err, files in rows}


def test_saves_that_find_no_room_are_told_tried_again_and_harm_nothing(said: dict[str, Said]) -> None:
    full = said["full"]
    assert full.code == 2, full
    for step in (6, 8):
        told = [line for line in full.out.splitlines() if f"checkpoint of step {step} not saved" in line]
        assert told, full.out
        assert "No space left on device" in told[0]
        assert "the latest checkpoint is still step 4" in told[0]
    *warnings, last = full.err.splitlines()
    assert "cannot be written: No space left on device (free some space" in last
    assert all("metrics.jsonl: No space left on device" in line for line in warnings), full.err
    folders = {name.split("/")[3] for name in full.files if name.startswith("disk/run/checkpoints/step-")}
    assert folders == {"step-00000002", "step-00000004"}, "the room of those that failed is free again"


def test_with_room_the_same_command_goes_on_bit_for_bit(said: dict[str, Said], folder: Path) -> None:
    assert said["reference"].code == said["room"].code == 0, said["room"]
    assert "resuming from step 4 (bit-exact" in said["room"].out
    assert_bit_equal(folder / "expected", folder / "after")
    lines = map(json.loads, (folder / "after" / "metrics.jsonl").read_text().splitlines())
    assert [line["step"] for line in lines] == [0, *range(1, 9), 8], "each step once, and both evaluations"


def test_a_folder_that_turns_read_only_is_told_and_gone_on_with(said: dict[str, Said], folder: Path) -> None:
    found = said["read only"]
    assert found.code == 2, found
    for step in (6, 8):
        told = [line for line in found.out.splitlines() if f"checkpoint of step {step} not saved" in line]
        assert told, found.out
        assert "Read-only file system" in told[0]
    assert "Read-only file system" in found.err.splitlines()[-1]
    assert "Traceback" not in found.out + found.err
    assert said["writable"].code == 0, said["writable"]
    assert "resuming from step 4 (bit-exact" in said["writable"].out
    assert_bit_equal(folder / "expected", folder / "written")


def test_a_clock_that_jumps_by_an_hour_changes_nothing(said: dict[str, Said], folder: Path) -> None:
    assert said["clock"].code == 0, said["clock"]
    assert_bit_equal(folder / "expected", folder / "jumped")
    lines = [json.loads(line) for line in (folder / "jumped" / "metrics.jsonl").read_text().splitlines()]
    assert all(0 <= line["seconds"] < 600 for line in lines if "seconds" in line)
    record = read_run(folder / "jumped")
    (attempt,) = record.history
    hours = {save.step: round((save.at - attempt.started).total_seconds() / 3600) for save in attempt.saves}
    assert hours == {2: 1, 4: 0, 6: -1, 8: 0}, "what is written as a time of day follows the clock"
    assert 0 < (last_sign(record, attempt) - attempt.started).total_seconds() < 600


def test_an_export_that_finds_no_room_leaves_nothing_and_harms_nothing(said: dict[str, Said]) -> None:
    def model(files: dict[str, str], top: str) -> dict[str, str]:
        return {name: sha for name, sha in files.items() if name.startswith(top)}

    for name in ("export full", "export again full"):
        assert said[name].code == 2, said[name]
        assert len(said[name].err.splitlines()) == 1, said[name].err
        assert "cannot be written: No space left on device (free some space" in said[name].err
    assert model(said["export full"].files, "small") == {}
    assert said["export room"].code == said["export"].code == 0, said["export room"]
    whole = model(said["export"].files, "disk/run/export")
    assert "disk/run/export/model.safetensors" in whole
    assert model(said["export again full"].files, "disk/run/") == model(said["export"].files, "disk/run/")
