"""`maskmill status` where clocks differ between machines, or were set by an hour or a year while a run goes on."""

import json
import os
import time
from pathlib import Path

import pytest

from pretrain.report.status import RUNNING, STALLED, STARTING, STOPPED, in_words, read_status
from pretrain.run.files import time_in
from pretrain.run.folder import EVALUATING, HEARTBEAT, TRAINING, Heartbeat, age_here, read_heartbeat
from tests.unit.pretrain.report.test_status import NOW, Folder

HOUR, YEAR = 3600.0, 365 * 86_400.0
BOTH_WAYS = pytest.mark.parametrize("jump", [HOUR, -HOUR, YEAR, -YEAR])


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "run")


def date(folder: Folder, jump: float) -> None:
    """Date the run's files as if a clock had been ahead by `jump` seconds when they were written."""
    for path in folder.path.rglob("*"):
        if path.is_file():
            at = path.stat().st_mtime + jump
            os.utime(path, (at, at))


@BOTH_WAYS
def test_a_reader_with_another_clock_than_the_folder_judges_as_any_other(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    behind = time.time() - NOW  # since the tests were collected
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + jump)
    folder.run(ago=5 - behind, began=1000)
    folder.heartbeat(ago=5 - behind)
    folder.write("checkpoints/step-00000010/checkpoint.json", "{}", ago=60 - behind)
    before = sorted(folder.path.iterdir())
    status = read_status(folder.path)
    assert status.health == RUNNING
    assert status.quiet == pytest.approx(5, abs=3)
    assert status.checkpoint_age == pytest.approx(60, abs=3)
    assert sorted(folder.path.iterdir()) == before
    date(folder, -300)
    assert read_status(folder.path).health == STALLED


@pytest.mark.parametrize("ahead", [HOUR, YEAR])
def test_a_run_whose_files_are_dated_in_the_future_is_not_alive_until_then(
    folder: Folder, ahead: float
) -> None:
    folder.run(ago=5)
    folder.heartbeat(ago=5, attempt=1)
    date(folder, ahead)  # the clock was set back, and nothing written since
    status = folder.status()
    assert (status.health, status.quiet) == (STALLED, None)
    assert f"its newest file is dated {ahead - 5:,.0f} s ahead: a clock was set back" in in_words(status, "")
    folder.heartbeat(ago=5, attempt=1)
    status = folder.status()
    assert (status.health, status.quiet) == (RUNNING, pytest.approx(5)), "the heartbeat was written since"
    folder.heartbeat(ago=300, attempt=1)
    assert folder.status().health == STALLED, "and then nothing"
    for name in ("summary.json", "metrics.jsonl", HEARTBEAT):
        os.utime(folder.path / name, (NOW + 20, NOW + 20))
    assert (folder.status().health, folder.status().quiet) == (RUNNING, 0.0), "a little ahead is no matter"


@BOTH_WAYS
def test_a_clock_that_was_set_on_the_machine_of_the_run_does_not_matter_there(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    folder.run(ago=0)
    Heartbeat(folder.path, first_rank=True).write(20, EVALUATING)
    date(folder, -jump)
    status = folder.status()
    assert (status.health, status.quiet) == (RUNNING, pytest.approx(0, abs=20)), (
        "an evaluation writes nothing"
    )
    clock = time.clock_gettime
    monkeypatch.setattr(time, "clock_gettime", lambda which: clock(which) + 1900)
    status = folder.status()
    assert (status.health, status.quiet) == (STALLED, pytest.approx(1900, abs=20))


def test_the_age_of_a_heartbeat_is_known_on_the_machine_that_wrote_it_until_it_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Heartbeat(tmp_path, first_rank=True).write(1, TRAINING)
    written = read_heartbeat(tmp_path)
    assert age_here(written) == pytest.approx(0, abs=20)
    assert age_here(written | {"boot": "another"}) is None
    assert age_here(written | {"uptime": written["uptime"] + 1000}) is None
    for uptime in ("5", None, True, float("nan")):
        assert age_here(written | {"uptime": uptime}) is None
    assert age_here({}) is None
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: (_ for _ in ()).throw(FileNotFoundError))
    assert age_here(written) is None, "another system than Linux"


@BOTH_WAYS
def test_attempts_are_told_apart_by_number_where_a_clock_was_set_between_them(
    folder: Folder, jump: float
) -> None:
    folder.run("stopped", ago=20 + jump, began=10, attempts=10)
    folder.heartbeat(ago=20 + jump, attempt=9)
    assert folder.status().health == STARTING, "the tenth has only begun"
    folder.run("stopped", ago=5, began=10 + jump, attempts=10)
    folder.heartbeat(ago=5, attempt=10)
    assert folder.status().health == STOPPED, "the tenth was stopped"


def test_a_heartbeat_names_its_attempt(tmp_path: Path) -> None:
    Heartbeat(tmp_path, first_rank=True).write(1, TRAINING)
    assert read_heartbeat(tmp_path)["attempt"] is None, "of a folder that was not opened"
    (tmp_path / "run.json").write_text(json.dumps({"attempts": 3}))
    Heartbeat(tmp_path, first_rank=True).write(1, TRAINING)
    assert read_heartbeat(tmp_path)["attempt"] == 3


def test_the_time_in_a_folder_is_that_of_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + HOUR)
    (tmp_path / "file").write_text("")
    assert time_in(tmp_path) == pytest.approx((tmp_path / "file").stat().st_mtime, abs=20)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert time_in(tmp_path / "none") == pytest.approx(time.time(), abs=20), "nothing better is known there"
