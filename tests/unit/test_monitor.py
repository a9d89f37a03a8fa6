"""The history of a run is written once, whatever the number of its lives, and W&B gets each line once."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.errors import UserError
from pretrain import monitor
from pretrain.config import MonitorSettings


def steps(folder: Path) -> list[int]:
    return [line["step"] for line in monitor.read_metrics(folder)]


def write(folder: Path, *numbers: int) -> None:
    tracker = monitor.open_tracker(folder, MonitorSettings(), "id", {}, first_rank=True)
    for step in numbers:
        tracker.log({"kind": "train", "step": step, "loss": 1.5})
    tracker.close()


def test_a_resumed_run_cuts_what_its_checkpoint_does_not_know(tmp_path: Path) -> None:
    write(tmp_path, 10, 20, 30, 40)
    assert monitor.cut_metrics(tmp_path, 20) == 2
    assert steps(tmp_path) == [10, 20]
    write(tmp_path, 30, 40, 50)
    assert steps(tmp_path) == [10, 20, 30, 40, 50]
    lost = (tmp_path / "metrics.lost.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lost] == [30, 40]


def test_a_line_torn_by_a_kill_is_not_a_line(tmp_path: Path) -> None:
    write(tmp_path, 10)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2')
    assert steps(tmp_path) == [10]
    monitor.cut_metrics(tmp_path, 10)
    write(tmp_path, 20)
    assert steps(tmp_path) == [10, 20]


def test_other_ranks_and_tracker_none_write_nothing(tmp_path: Path) -> None:
    for settings, first in ((MonitorSettings(), False), (MonitorSettings(tracker="none"), True)):
        tracker = monitor.open_tracker(tmp_path, settings, "id", {}, first_rank=first)
        tracker.log({"step": 1})
        tracker.close()
    assert list(tmp_path.iterdir()) == []


class Server:
    """Stands in for W&B: keeps what each run was sent."""

    def __init__(self) -> None:
        self.points: list[dict[str, Any]] = []
        self.ids: set[str] = set()

    def start(self, folder: Path, project: str, run_id: str, config: dict[str, Any], mode: str) -> "Server":
        self.ids.add(run_id)
        self.mode = mode
        return self

    def log(self, point: dict[str, Any]) -> None:
        self.points.append(point)

    def finish(self) -> None:
        pass


def test_sync_sends_every_step_once_over_several_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server()
    monkeypatch.setattr(monitor, "_start", server.start)
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    write(tmp_path, 10, 20, 30)
    assert monitor.sync(tmp_path, "abc", "p", {}) == 3
    monitor.cut_metrics(tmp_path, 30)
    write(tmp_path, 40, 50)
    assert monitor.sync(tmp_path, "abc", "p", {}) == 2
    assert monitor.sync(tmp_path, "abc", "p", {}) == 0
    assert [point["step"] for point in server.points] == [10, 20, 30, 40, 50]
    assert server.ids == {"abc"}
    assert all("kind" not in point for point in server.points), "only numbers make points"


def test_an_online_life_first_sends_what_offline_lives_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server()
    write(tmp_path, 1, 2, 3)
    monkeypatch.setattr(monitor, "_start", server.start)
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    tracker = monitor.open_tracker(tmp_path, MonitorSettings(tracker="wandb"), "abc", {}, first_rank=True)
    tracker.log({"kind": "train", "step": 4, "loss": 1.0})
    tracker.close()
    assert monitor.sync(tmp_path, "abc", "p", {}) == 0
    assert [point["step"] for point in server.points] == [1, 2, 3, 4]


def test_a_server_out_of_reach_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Server()

    def start(folder: Path, project: str, run_id: str, config: dict[str, Any], mode: str) -> Server:
        if mode == "online":
            raise TimeoutError("no route to host")
        return server.start(folder, project, run_id, config, mode)

    monkeypatch.setattr(monitor, "_start", start)
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    tracker = monitor.open_tracker(tmp_path, MonitorSettings(tracker="wandb"), "abc", {}, first_rank=True)
    tracker.log({"kind": "train", "step": 1, "loss": 1.0})
    tracker.close()
    assert server.mode == "offline"
    assert "going on offline: no route to host" in capsys.readouterr().err
    assert steps(tmp_path) == [1]


def test_sync_without_a_key_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    with pytest.raises(UserError, match="wandb login"):
        monitor.sync(tmp_path, "abc", "p", {})


def test_wandb_runs_offline_without_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    settings = MonitorSettings(tracker="wandb", project="test")
    tracker = monitor.open_tracker(tmp_path, settings, "fixedid1", {"a": 1}, first_rank=True)
    tracker.log({"kind": "train", "step": 1, "loss": 2.0})
    tracker.close()
    assert steps(tmp_path) == [1]
    assert [p.name.split("-")[-1] for p in (tmp_path / "wandb").glob("offline-run-*")] == ["fixedid1"]


def test_lines_wait_for_a_folder_that_is_full_or_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    lines = monitor.JsonLines(folder)
    lines.log({"step": 1})
    folder.rename(tmp_path / "away")
    lines.log({"step": 2})
    assert "1 lines wait" in capsys.readouterr().err
    (tmp_path / "away").rename(folder)
    code = (
        "import resource, signal, sys; from pathlib import Path; from pretrain.monitor import JsonLines\n"
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
