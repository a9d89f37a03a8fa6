"""What a run says of itself: figures that are no numbers, disturbances, and whole lines whatever the disk does."""

import io
import json
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from torch import nn

from pretrain import train
from pretrain.config.settings import RunConfig
from pretrain.distributed.world import World
from pretrain.monitoring import run_log as run_log_module
from pretrain.monitoring.run_log import RunLog
from pretrain.objectives.registry import with_defaults
from pretrain.report.status import in_words, read_status
from pretrain.run import files
from pretrain.run.events import (
    HANG,
    NOT_MIRRORED,
    NOT_SAVED,
    SAVED,
    append_event,
    read_disturbances,
    read_events,
)
from pretrain.run.files import EVENTS, number, table, tables, text_of
from pretrain.run.folder import STARTING, TRAINING, read_heartbeat, read_summary
from pretrain.run.metrics_log import PROBE, JsonLines, read_metrics
from pretrain.run.time_budget import phases_in, seconds_left
from pretrain.training.progress import Position


class Told(JsonLines):
    """Keeps what somebody would be alerted of."""

    causes: list[str]

    def alert(self, cause: str, text: str) -> None:
        self.causes.append(cause)


@pytest.fixture
def run_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def made(precision: str = "fp32") -> tuple[RunLog, Told]:
        told = Told(tmp_path)
        told.causes = []
        monkeypatch.setattr(run_log_module, "open_tracker", lambda *_: told)
        config = RunConfig()
        config.run.dir, config.run.live = str(tmp_path), False
        plan = SimpleNamespace(
            index=SimpleNamespace(statistics={}),
            objective=with_defaults("bert"),
            phase=SimpleNamespace(number=0, name="", first=0, last=100, config=config),
        )
        engine = SimpleNamespace(
            precision=precision, module=nn.Linear(1, 1), partition=SimpleNamespace(shapes={})
        )
        shown = Console(file=io.StringIO())
        plans: Any = [plan]
        return RunLog(config, plans, engine, World(), shown, "maskmill train demo", "id"), told  # type: ignore[arg-type]

    return made


def test_a_held_out_figure_that_is_no_number_is_told_and_replaces_the_one_before(
    run_log: Any, tmp_path: Path
) -> None:
    written, _ = run_log()
    good = {"held_out_loss": 5.0, "held_out_mask_loss": 4.0, "held_out_mask_unigram_loss": 6.0}
    bad = {**good, "held_out_loss": float("nan"), "held_out_mask_loss": float("inf")}
    with written:
        assert written.evaluation(Position(step=10), lambda _: good) == 5.0
        assert written.evaluation(Position(step=20), lambda _: bad) is None
    lines = read_metrics(tmp_path)
    assert [line["held_out_loss"] for line in lines] == [5.0, None]
    assert "held_out_mask_loss" not in read_summary(tmp_path), "the one of step 10 is not the newest"
    assert read_status(tmp_path).held_out_loss is None


@pytest.mark.parametrize(
    ("precision", "text", "alerted"),
    [
        ("fp32", "the gradient of batch 3 is not finite", ["nan"]),
        ("fp16", "the gradient of batch 3 is not finite", []),
        ("fp16", "the loss of batch 3 is a spike: 9 is above 5", ["spike"]),
        ("fp16", "no example of batch 3 can be read", ["damaged"]),
    ],
)
def test_overflows_of_fp16_alone_disturb_nobody(
    run_log: Any, precision: str, text: str, alerted: list[str]
) -> None:
    written, told = run_log(precision)
    written.event("skip", Position(batch=4), text)
    assert told.causes == alerted


def test_a_phase_that_begins_is_not_training_yet(
    run_log: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, _ = run_log()
    phase = SimpleNamespace(number=0, name="", first=50, last=100, config=RunConfig())
    plan: Any = SimpleNamespace(index=SimpleNamespace(statistics={}), phase=phase)
    with written:
        written.heartbeat.write(50, TRAINING)
        written.enter(plan, Position(step=50))
        assert read_heartbeat(tmp_path)["doing"] == STARTING, "compiling takes longer than steps"


def test_a_torn_line_takes_none_of_the_next_with_it(run_log: Any, tmp_path: Path) -> None:
    (tmp_path / EVENTS).write_text('{"event": "skip", "st')
    written, _ = run_log()
    written.event("skip", Position(step=3, batch=4), "why")
    assert [event["step"] for event in read_events(tmp_path)] == [3]


def test_lines_are_appended_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lines"
    files.append(path, b"one\n")

    class Full(io.FileIO):
        def write(self, data: Any) -> int:
            return super().write(bytes(data)[:2])  # as a disk with two bytes left

    monkeypatch.setattr("builtins.open", lambda path, *_, **__: Full(path, "a+"))
    with pytest.raises(OSError, match="No space"):
        files.append(path, b"two\n")
    monkeypatch.undo()
    assert path.read_bytes() == b"one\n"
    files.append(path, b"three\n")
    assert path.read_bytes() == b"one\nthree\n"


def test_a_small_file_is_never_half_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "small"
    files.replace_file(path, "before")

    class Full(io.TextIOWrapper):
        def write(self, _: str) -> int:
            raise OSError(28, os.strerror(28))

    monkeypatch.setattr(files, "open_to_write", lambda path, _: Full(path.open("wb")))
    with pytest.raises(OSError, match="No space"):
        files.replace_file(path, "after")
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_read_is_empty(tmp_path: Path) -> None:
    torn = tmp_path / "torn"
    torn.write_text('{"a": 1}\n[2]\n{"b": ')
    assert list(tables(text_of(torn))) == [{"a": 1}]
    assert list(tables(text_of(torn, last=9))) == []
    assert table(torn) == table(tmp_path / "missing") == {}
    assert [number(x) for x in (3, 2.5, True, "3", float("nan"), 10**400, None)] == [3.0, 2.5] + [None] * 5


def test_a_report_that_cannot_be_drawn_decides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(train, "render", full)
    said = io.StringIO()
    train.draw_report(tmp_path, Console(file=said, width=200))
    assert said.getvalue() == "maskmill: WARNING: no report: OSError: [Errno 28] No space left on device\n"


def test_time_left_over_phases() -> None:
    phases = [
        {"first": 0, "last": 50, "global_batch": 8, "sequence_length": 128},
        {"first": 50, "last": 100, "global_batch": 4, "sequence_length": 512},
    ]
    assert seconds_left(20, 2.0, phases) == 30 * 2.0 + 50 * 2.0 * 2
    assert seconds_left(50, 2.0, phases) == 50 * 2.0 * 2, "the pace is still that of the first phase"
    assert seconds_left(60, 2.0, phases) == 40 * 2.0
    assert seconds_left(60, 2.0, phases_in({"steps": 100})) == 40 * 2.0
    assert seconds_left(60, 2.0, phases, measured=50) == 40 * 2.0 * 2, "measured in the phase before"
    ramp = {"first": 0, "last": 10, "global_batch": 8, "sequence_length": 128}
    ramp |= {"batch_ramp": 4, "batch_ramp_from": 2, "streams": 2}  # steps of 2, 2, 4, 6, 8, 8, ... examples
    assert seconds_left(1, 1.0, [ramp]) == (2 + 4 + 6 + 6 * 8) / 2
    assert seconds_left(4, 3.0, [ramp]) == 6 * 3.0 * 8 / 6
    assert seconds_left(120, 2.0, [json.loads('{"last": "x"}')]) == 0.0


def test_a_resumed_run_does_not_evaluate_its_start_twice(run_log: Any, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"kind": "eval", "step": 0}\n{"kind": "train", "step": 3}\n')
    written, _ = run_log()
    assert written.has_evaluation(0)
    assert not written.has_evaluation(3)
    assert not written.has_evaluation(0, PROBE)


def test_scores_that_a_rollback_takes_back_are_taken_again(run_log: Any, tmp_path: Path) -> None:
    lines = [{"kind": "probe", "step": step, "probe/blimp_accuracy": 50.0} for step in (0, 2, 4)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    written, _ = run_log()
    assert [written.has_evaluation(step, PROBE) for step in (0, 2, 3, 4)] == [True, True, False, True]
    written.rolled_back(Position(step=2))
    assert [written.has_evaluation(step, PROBE) for step in (0, 2, 4)] == [True, True, False]
    assert [line["step"] for line in read_metrics(tmp_path)] == [0, 2]


def test_a_failed_save_is_an_event_an_alert_and_a_word_of_status(run_log: Any, tmp_path: Path) -> None:
    written, told = run_log()
    (tmp_path / "run.json").write_text(json.dumps({"format": 2, "identity": {}, "attempts": 1, "id": "x"}))
    with written:
        written.enter(written._plan, Position(step=0))
        (tmp_path / "checkpoints/step-00000010").mkdir(parents=True)
        (tmp_path / "checkpoints/step-00000010/checkpoint.json").write_text("{}")
        for step in (112, 212):
            written.failed_save(NOT_SAVED, step, "No space left on device")
        written.failed_save(NOT_MIRRORED, 212, "s3://bucket: 403")
        written.heartbeat._last = 0.0
        written.heartbeat.write(212, TRAINING)
        found = read_status(tmp_path)
        assert "last good checkpoint 202 steps ago (step 10), saves fail: No space left" in in_words(
            found, ""
        )
        assert found.save_error == "No space left on device"
        assert [one["event"] for one in read_disturbances(tmp_path)] == [NOT_SAVED, NOT_SAVED, NOT_MIRRORED]
        assert told.causes == ["not saved", "not saved", "not mirrored"]
        later = datetime.now(UTC) + timedelta(seconds=2)
        append_event(tmp_path, SAVED, at=later, step=220, seconds=1, blocked_seconds=0, bytes=1)
        assert read_status(tmp_path).save_error == "", "a save has succeeded since"


@pytest.mark.parametrize("seen", [True, False], ids=["said by the process", "known by the log alone"])
def test_a_hang_is_an_event_and_an_alert_once(seen: bool, run_log: Any, tmp_path: Path) -> None:
    written, told = run_log()
    written.__enter__()
    written.enter(written._plan, Position(step=7))
    if seen:
        written.hangs("a step, an evaluation or a save took longer than run.step_timeout (30 s)")
        assert told.causes == ["hang"]
    logs = tmp_path / "logs"
    logs.mkdir()
    stage = time.strftime("[%Y-%m-%d %H:%M:%S]")
    lines = [
        f"{stage} a step, an evaluation or a save (run.step_timeout: 30 s)",
        "Timeout (0:00:30)!",
        "Thread 1 (most recent call first):",
        f"{stage} importing torch (run.stage_limit: 30 s)",
    ]
    (logs / "rank-1.log").write_text("\n".join(lines) + "\n")
    again, told = run_log()  # the process was killed: it has said no more
    with again:
        pass
    events = [one for one in read_events(tmp_path) if one["event"] == HANG]
    assert len(events) == 1
    assert "a step, an evaluation or a save took longer than run.step_timeout" in events[0]["text"]
    assert told.causes == (["restart"] if seen else ["hang"])
    assert "hang: a step" in in_words(read_status(tmp_path), "")


def test_an_older_hang_is_not_told_again(run_log: Any, tmp_path: Path) -> None:
    written, _ = run_log()
    written.__enter__()
    written.enter(written._plan, Position(step=7))
    (tmp_path / "logs").mkdir()
    old = (
        "[2020-01-01 00:00:00] a step, an evaluation or a save (run.step_timeout: 30 s)\nTimeout (0:00:30)!\n"
    )
    (tmp_path / "logs" / "rank-0.log").write_text(old)
    again, told = run_log()
    with again:
        pass
    assert read_disturbances(tmp_path) == []
    assert told.causes == ["restart"]
