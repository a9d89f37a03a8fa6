"""events.jsonl: what is read back from it, and from the files of an older version in its place."""

import json
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pretrain.monitoring.tracker import Alerts
from pretrain.run.events import (
    HANG,
    LINES_BETWEEN_EVENTS,
    LINES_LOST,
    LOST,
    SPENT,
    UPLOADED,
    AttemptLog,
    Uploaded,
    append_event,
    read_attempts,
    read_disturbances,
    read_events,
)
from pretrain.run.files import EVENTS, TENSORBOARD, WANDB

ATTEMPTS = """\
{"event": "started", "at": "2026-11-28T18:51:48+00:00", "step": 0, "seconds": 0.0, "ranks": 2, "hosts": ["vm"], \
"device": "Xeon", "device_type": "cpu", "threads": 1}
{"event": "saved", "at": "2026-11-28T18:52:56+00:00", "step": 500, "seconds": 0.058, "blocked_seconds": 0.004, \
"bytes": 9779525}
{"event": "ended", "at": "2026-11-28T18:53:10+00:00", "step": 600, "status": "stopped", "error": "", "spent": 82.5}
{"event": "started", "at": "2026-11-28T18:54:00+00:00", "step": 600, "seconds": 80.0, "ranks": 2, "hosts": ["vm"], \
"device": "Xeon", "device_type": "cpu", "threads": 1}
{"event": "sav"""
OLDER = {
    "attempts.jsonl": ATTEMPTS,
    "events.jsonl": '{"event": "skip", "batch": 7, "step": 7, "text": "why", "at": "2026-11-28T18:52:00+00:00"}\n',
    "wandb_uploaded.json": '{"lines": 12, "points": 15, "cut": 3, "settled": true}',
    "wandb_alerts.json": json.dumps({"failed": time.time()}),
    "tensorboard/written.json": '{"lines": 9}',
    "metrics.lost.jsonl": '{"kind": "train", "step": 501}\n',
}
"""What a run of an older version, whose second attempt was killed, has in its folder beside what is as it was."""


@pytest.fixture
def older(tmp_path: Path) -> Path:
    (tmp_path / "tensorboard").mkdir()
    for name, text in OLDER.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_folder_of_an_older_version_reads_as_one_of_this(older: Path) -> None:
    first, second = read_attempts(older, {SPENT: 4})
    assert (first.status, first.last, first.spent, first.ranks) == ("stopped", 600, 82.5, 2)
    assert (first.saves[0].step, first.saves[0].bytes) == (500, 9779525)
    assert (second.first, second.ended, second.spent, second.hosts) == (600, None, 4, ("vm",))
    assert [event["text"] for event in read_disturbances(older)] == ["why"]
    assert Uploaded.read(older, WANDB) == Uploaded(12, 15, 3, settled=True)
    assert Uploaded.read(older, TENSORBOARD) == Uploaded(9, settled=False)
    alerts = Alerts(older, "run", every=3600)
    assert alerts.due("failed", "within the hour") is None
    assert alerts.due("hang", "another cause") is not None


def test_a_folder_of_an_older_version_goes_on_in_the_files_of_this(older: Path) -> None:
    lines = [{"step": step} for step in (610, 620)]
    append_event(older, LINES_LOST, step=600, kept=11, lines=lines, damaged=[])
    AttemptLog(older, writes=True).started(600, {"ranks": 4}, {"step": 620, "seconds": 90.0, SPENT: 9.0})
    assert [(one.status, one.last) for one in read_attempts(older)] == [
        ("stopped", 600),
        (LOST, 620),
        ("running", None),
    ]
    assert Uploaded.read(older, WANDB) == Uploaded(11, 16, 5, settled=True)
    assert Uploaded.read(older, TENSORBOARD) == Uploaded(9, settled=False)
    assert len(read_disturbances(older)) == 1
    unchanged = {name: (older / name).read_text() for name in OLDER if name != EVENTS}
    assert unchanged == {name: text for name, text in OLDER.items() if name != EVENTS}


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"nan": "x", "lines": "x"}', "\0\udcff"])
@pytest.mark.parametrize("name", sorted(OLDER))
def test_no_older_file_is_trusted(older: Path, name: str, text: str) -> None:
    (older / name).write_bytes(text.encode(errors="surrogateescape"))
    assert len(read_attempts(older)) in (0, 2)
    for to in (WANDB, TENSORBOARD):
        uploaded = Uploaded.read(older, to)
        assert uploaded is None or uploaded.lines in (0, 9, 12)
    assert Alerts(older, "run", every=3600).due("nan", "x") is not None


def test_disturbances_since_a_moment(tmp_path: Path) -> None:
    at = [datetime(2026, 3, 4, hour, tzinfo=UTC) for hour in (1, 2, 3)]
    for moment in at:
        append_event(tmp_path, HANG, at=moment, step=3, text=str(moment.hour))
    append_event(tmp_path, UPLOADED, to=WANDB, lines=1)
    assert [event["text"] for event in read_disturbances(tmp_path)] == ["1", "2", "3"]
    assert [event["text"] for event in read_disturbances(tmp_path, at[1])] == ["2", "3"]


def test_a_count_is_logged_now_and_then(tmp_path: Path) -> None:
    """Not at each line: events.jsonl is for people as well."""
    uploaded = Uploaded()
    for _ in range(2 * LINES_BETWEEN_EVENTS + 5):
        uploaded.add(tmp_path, WANDB)
    assert [event["lines"] for event in read_events(tmp_path)] == [
        LINES_BETWEEN_EVENTS,
        2 * LINES_BETWEEN_EVENTS,
    ]
    assert uploaded.points == 2 * LINES_BETWEEN_EVENTS + 5
    uploaded.log(tmp_path / "gone", WANDB)  # cannot be written: the run goes on
