"""What TensorBoard's event files have of a run: what W&B gets, each step once, over any number of attempts."""

import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from tensorboardX.proto import event_pb2
from tensorboardX.record_writer import masked_crc32c

from data_pipeline.errors import UserError
from pretrain.config.settings import MonitorSettings, RunConfig
from pretrain.monitoring import tensorboard
from pretrain.monitoring.tensorboard import TensorBoard
from pretrain.monitoring.tracker import Silent, open_tracker
from pretrain.monitoring.wandb_run import Bars, point_of
from pretrain.preflight import check_run
from pretrain.run import metrics_log
from pretrain.run.events import Uploaded
from pretrain.run.files import EVENTS, TENSORBOARD
from tests.command_line import Maskmill

Points = dict[tuple[str, int], list[Any]]


def records(path: Path) -> list[Any]:
    """The events of a file, its checksums checked; a torn end is left out, as readers do."""
    data, found, at = path.read_bytes(), [], 0
    while at + 12 <= len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        if at + 16 + size > len(data):
            break
        head, body = data[at : at + 8], data[at + 12 : at + 12 + size]
        assert struct.unpack_from("<I", data, at + 8)[0] == masked_crc32c(head)
        assert struct.unpack_from("<I", data, at + 12 + size)[0] == masked_crc32c(body)
        found.append(event_pb2.Event.FromString(body))
        at += 16 + size
    return found


def read(run: Path) -> Points:
    """The points as TensorBoard reads them: (name, step) -> values, the files in their order, steps from a session's
    start on purged."""
    found: Points = {}
    for path in sorted((run / TENSORBOARD).glob("events.out.tfevents.*")):
        first, *rest = records(path)
        assert first.file_version == "brain.Event:2"
        for event in rest:
            if event.HasField("session_log"):
                assert event.session_log.status == event_pb2.SessionLog.START
                found = {key: values for key, values in found.items() if key[1] < event.step}
            for value in event.summary.value:
                bars = value.WhichOneof("value") == "histo"
                seen = (
                    Bars(list(value.histo.bucket), list(value.histo.bucket_limit))
                    if bars
                    else value.simple_value
                )
                found.setdefault((value.tag, event.step), []).append(seen)
    return found


def expected(run: Path) -> Points:
    """Those of metrics.jsonl, as W&B gets them."""
    found: Points = {}
    for line in metrics_log.read_metrics(run):
        for name, value in point_of(line).items():
            if name != "step":
                bars = isinstance(value, Bars)
                seen = (
                    Bars(value.heights, value.edges[1:]) if isinstance(value, Bars) else pytest.approx(value)
                )
                assert bars or isinstance(value, int | float)
                found.setdefault((name, line["step"]), []).append(seen)
    return found


def opened(run: Path) -> TensorBoard:
    found = open_tracker(run, MonitorSettings(tracker="tensorboard"), "id", {}, first_rank=True)
    assert isinstance(found, TensorBoard)
    return found


def line_of(step: int, **more: Any) -> dict[str, Any]:
    return {
        "kind": "train",
        "step": step,
        "loss": 9 - step / 10,
        "phase": "a",
        "step_ms_by_rank": [1.0, 2.5],
        **more,
    }


def killed(tracker: TensorBoard) -> None:
    assert tracker._events is not None
    tracker._events.give_up()


def attempt(run: Path, *steps: int, value: float = 0.0, ends: bool = True) -> None:
    tracker = opened(run)
    for step in steps:
        tracker.log(line_of(step, value=value))
        if step % 10 == 0:
            tracker.log({"kind": "eval", "step": step, "held_out_loss": 5.0 + value})
    tracker.log({"kind": "trust", "step": steps[-1], "trust_ratio/encoder.layers.0.query.weight": 0.5})
    if ends:
        tracker.close()
    else:
        killed(tracker)


def test_the_points_are_those_of_wandb(tmp_path: Path) -> None:
    attempt(tmp_path, 5, 10, 15, 20)
    found = read(tmp_path)
    assert found == expected(tmp_path)
    assert found[("loss", 15)] == [7.5]
    assert found[("held_out_loss", 20)] == [5.0]
    assert isinstance(found[("trust_ratio_by_layer", 20)][0], Bars)
    assert not [name for name, _ in found if name in ("step", "kind", "phase")]


@pytest.mark.parametrize("ends", [True, False], ids=["ended", "killed"])
def test_a_resumed_run_has_each_step_once(tmp_path: Path, ends: bool) -> None:
    attempt(tmp_path, 5, 10, 15, 20, 25, ends=ends)
    metrics_log.cut_metrics(tmp_path, 10)
    attempt(tmp_path, 15, 20, value=1.0)
    assert read(tmp_path) == expected(tmp_path)
    assert read(tmp_path)[("value", 15)] == [1.0]
    assert ("loss", 25) not in read(tmp_path), "it was not done again"


def test_a_rolled_back_run_has_each_step_once(tmp_path: Path) -> None:
    tracker = opened(tmp_path)
    for step in (5, 10, 15):
        tracker.log(line_of(step))
    tracker.cut(5)
    assert read(tmp_path) == expected(tmp_path)
    tracker.log(line_of(10, value=2.0))
    tracker.cut(0)
    for step in (5, 10):
        tracker.log(line_of(step, value=3.0))
    tracker.close()
    assert read(tmp_path) == expected(tmp_path)
    assert read(tmp_path)[("value", 10)] == [3.0]


@pytest.mark.parametrize("known", [0, 1, 2, 4], ids=lambda count: f"{count} lines known")
def test_what_the_files_lack_is_written_at_the_next_start(tmp_path: Path, known: int) -> None:
    """Lines of an attempt with another tracker, or behind a kill; a step with two lines is written as a whole."""
    attempt(tmp_path, 5, 10, 15, 20)
    Uploaded(known).log(tmp_path, TENSORBOARD)
    other = metrics_log.JsonLines(tmp_path)
    other.log(line_of(25))
    opened(tmp_path).close()
    assert read(tmp_path) == expected(tmp_path)
    uploaded = Uploaded.read(tmp_path, TENSORBOARD)
    assert uploaded is not None
    assert uploaded.lines == len(metrics_log.read_metrics(tmp_path))
    (tmp_path / EVENTS).write_text("{")
    opened(tmp_path).close()
    assert read(tmp_path) == expected(tmp_path)
    shutil.rmtree(tmp_path / TENSORBOARD)
    opened(tmp_path).close()
    assert read(tmp_path) == expected(tmp_path), "the files were removed, to be written anew"


def test_steps_that_another_tracker_did_again_replace_those_of_before(tmp_path: Path) -> None:
    attempt(tmp_path, 5, 10, 15, 20)
    metrics_log.cut_metrics(tmp_path, 5)
    other = metrics_log.JsonLines(tmp_path)
    for step in (10, 15, 20, 25, 30, 35, 40):
        other.log(line_of(step, value=7.0))
    attempt(tmp_path, 45)
    assert read(tmp_path) == expected(tmp_path)


def test_a_torn_end_costs_that_line_alone(tmp_path: Path) -> None:
    attempt(tmp_path, 5, 10, ends=False)
    [path] = (tmp_path / TENSORBOARD).glob("events*")
    path.write_bytes(path.read_bytes()[:-7])
    attempt(tmp_path, 15)
    assert read(tmp_path) == expected(tmp_path)


def test_a_failure_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tracker = opened(tmp_path)
    tracker.log(line_of(5))

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(tensorboard.Events, "flush", full)
        tracker.log(line_of(10))
        tracker.log(line_of(15))
    tracker.close()
    said = capsys.readouterr().out
    assert said.count("WARNING") == 1
    assert "tensorboard cannot be written, continuing without TensorBoard" in said
    assert len(metrics_log.read_metrics(tmp_path)) == 3
    opened(tmp_path).close()
    assert read(tmp_path) == expected(tmp_path)


def test_a_folder_that_cannot_be_made_does_not_end_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / TENSORBOARD).write_text("in its place")
    attempt(tmp_path, 5)
    assert "cannot be written" in capsys.readouterr().out
    assert len(metrics_log.read_metrics(tmp_path)) == 2


def test_other_ranks_write_nothing(tmp_path: Path) -> None:
    other = open_tracker(tmp_path, MonitorSettings(tracker="tensorboard"), "id", {}, first_rank=False)
    assert isinstance(other, Silent)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_library_is_said_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_run, "find_spec", lambda name: None)
    config = RunConfig()
    config.run.dir, config.monitor.tracker = "run", "tensorboard"
    with pytest.raises(UserError, match=r"not installed: tensorboardX .*maskmill\[tensorboard\]"):
        check_run.check_run(config, 1)


# what DeepSpeed's imports give rise to in a process of pytest's
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_stopped_and_resumed_training(
    here: None, tiny: list[str], maskmill: Maskmill, tmp_path: Path
) -> None:
    run = [*tiny, f"run.dir={tmp_path}/run", "monitor.tracker=tensorboard", "train.log_every=1"]
    maskmill("train", "demo", *run, "run.stop_after=2")
    maskmill("train", "demo", *run)
    found = read(tmp_path / "run")
    assert found == expected(tmp_path / "run")
    assert [step for name, step in found if name == "lr"] == [1, 2, 3, 4]
