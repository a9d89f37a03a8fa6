"""The history of a run is written once, whatever the number of its attempts."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.errors import UserError
from pretrain.config.settings import MonitorSettings
from pretrain.monitoring import tracker as monitor
from pretrain.run import metrics_log
from pretrain.run.events import LINES_LOST, read_events


def steps(folder: Path) -> list[int]:
    return [line["step"] for line in metrics_log.read_metrics(folder)]


def lost(folder: Path) -> list[dict[str, Any]]:
    """The events that hold what was cut."""
    return [event for event in read_events(folder) if event["event"] == LINES_LOST]


def write(folder: Path, *numbers: int) -> None:
    tracker = monitor.open_tracker(folder, MonitorSettings(), "id", {}, first_rank=True)
    for step in numbers:
        tracker.log({"kind": "train", "step": step, "loss": 1.5})
    tracker.close()


def test_a_resumed_run_cuts_what_its_checkpoint_does_not_know(tmp_path: Path) -> None:
    write(tmp_path, 10, 20, 30, 40)
    assert metrics_log.cut_metrics(tmp_path, 20) == 2
    assert steps(tmp_path) == [10, 20]
    write(tmp_path, 30, 40, 50)
    assert steps(tmp_path) == [10, 20, 30, 40, 50]
    (event,) = lost(tmp_path)
    assert [line["step"] for line in event["lines"]] == [30, 40]
    assert (event["step"], event["kept"], event["damaged"]) == (20, 2, [])


def test_a_line_torn_by_a_kill_is_not_a_line(tmp_path: Path) -> None:
    write(tmp_path, 10)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2')
    assert steps(tmp_path) == [10]
    metrics_log.cut_metrics(tmp_path, 10)
    write(tmp_path, 20)
    assert steps(tmp_path) == [10, 20]


DAMAGED = {
    "a flipped bracket": b'[{"kind": "train", "step": 20, "loss": 1.5}',
    "no text": b"\xff\x00\x17",
    "a byte that is no character": b'{"kind": "train", "step": 20, "phase": "\xff"}',
    "a figure that is no number": b'{"kind": "train", "step": 20, "loss": "1.5"}',
    "two lines that became one": b'{"step": 20}{"step": 30}',
}


@pytest.mark.parametrize("name", DAMAGED)
@pytest.mark.parametrize("at", [0, 1, 3])
def test_a_damaged_line_is_kept_and_warned_of_wherever_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, at: int
) -> None:
    write(tmp_path, 10, 30, 40)
    path = tmp_path / "metrics.jsonl"
    lines = path.read_bytes().splitlines()
    lines.insert(at, DAMAGED[name])
    path.write_bytes(b"\n".join([*lines, b""]))
    assert steps(tmp_path) == [10, 30, 40]
    assert metrics_log.cut_metrics(tmp_path, 30) == 1
    assert "metrics.jsonl: a damaged line was moved to events.jsonl" in capsys.readouterr().err
    assert steps(tmp_path) == [10, 30]
    (event,) = lost(tmp_path)
    assert event["damaged"][0].encode(errors="surrogateescape") == DAMAGED[name]
    assert event["lines"][0]["step"] == 40
    metrics_log.cut_metrics(tmp_path, 30)
    assert len(lost(tmp_path)) == 1
    assert capsys.readouterr().err == ""


def test_a_cut_that_finds_no_room_is_one_line_and_leaves_the_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: object, **_fields: object) -> None:
        raise OSError(28, "No space left on device")

    write(tmp_path, 10, 20, 30)
    monkeypatch.setattr(metrics_log, "append_event", full)
    with pytest.raises(UserError, match=r"events\.jsonl: cannot be written: No space left"):
        metrics_log.cut_metrics(tmp_path, 10)
    assert steps(tmp_path) == [10, 20, 30]
    assert lost(tmp_path) == []


def test_other_ranks_and_tracker_none_write_nothing(tmp_path: Path) -> None:
    for settings, first in ((MonitorSettings(), False), (MonitorSettings(tracker="none"), True)):
        tracker = monitor.open_tracker(tmp_path, settings, "id", {}, first_rank=first)
        tracker.log({"step": 1})
        tracker.close()
    assert list(tmp_path.iterdir()) == []


def test_lines_wait_for_a_folder_that_is_full_or_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    lines = metrics_log.JsonLines(folder)
    lines.log({"step": 1})
    folder.rename(tmp_path / "away")
    lines.log({"step": 2})
    assert "1 lines wait" in capsys.readouterr().err
    (tmp_path / "away").rename(folder)
    code = (
        "import resource, signal, sys; from pathlib import Path; from pretrain.run.metrics_log import JsonLines\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20))\n"
        "JsonLines(Path(sys.argv[1])).log({'step': 22222222})"
    )
    full = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True
    )
    assert "WARNING" in full.stderr
    assert (folder / "metrics.jsonl").read_text() == '{"step": 1}\n', "no torn line"
    lines.log({"step": 3})
    assert steps(folder) == [1, 2, 3]
