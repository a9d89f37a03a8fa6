"""Every viewer shows a run of an objective that it does not know: an invented headline, and the pair task `sop`."""

import io
import json
import os
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from rich.console import Console

from pretrain.export import card
from pretrain.monitoring.terminal import Lines, Panel
from pretrain.monitoring.wandb_dashboard import keys_of, sections
from pretrain.objectives.mlm import Mlm
from pretrain.objectives.registry import OBJECTIVES, Registered
from pretrain.report.inspection import run_headlines
from pretrain.report.record import read_run
from pretrain.report.status import RUNNING, STALLED, STARTING, STOPPED, in_words, read_status
from pretrain.report.summary import advice
from pretrain.run.files import HEARTBEAT, time_in
from pretrain.run.folder import EVALUATING, TRAINING, Heartbeat, age_here, read_heartbeat
from pretrain.run.learning import PAIRS, PLATEAU, findings, with_majority
from pretrain.run.metrics import headline_of, leading, metric, secondary, sum_of
from pretrain.run.metrics_log import wrong_figure
from tests.unit.pretrain.report.test_report_charts import SUMMARY, Page, make_run, page_of
from tests.unit.pretrain.report.test_status import NOW, Folder

HEADLINE = "twist_accuracy"
LINES: list[dict[str, Any]] = [
    {"kind": "train", "step": step, "loss": 2.0 - step / 50, "twist_loss": 0.6, "twist_accuracy": 0.8, "sop_loss": 0.7,
     "sop_accuracy": 0.55, "sop_accuracy_in_order": 0.6, "sop_accuracy_swapped": 0.5, "sop_loss_in_order": 0.6,
     "sop_loss_swapped": 0.8, "lr": 1e-3, "tokens_per_s": 1000.0}
    for step in range(1, 11)
]  # fmt: skip
EVALUATION: dict[str, Any] = {
    "held_out_loss": 1.9, "held_out_twist_loss": 0.62, "held_out_twist_accuracy": 0.78, "held_out_twist_majority": 0.6,
    "held_out_sop_loss": 0.71, "held_out_sop_accuracy": 0.72, "held_out_sop_majority": 0.52, "held_out_pairs": 1000.0,
    "held_out_echo_loss": 0.31,
}  # fmt: skip
COUNTS = {"pair_labels": {"in_order": 520, "swapped": 480}}
TWIST = "twist accuracy 78.0% (commonest answer 60.0%)"
SOP = "SOP accuracy 72.0% (commoner label 52.0%)"


class Twisted(Mlm):
    """What the dashboard is drawn for."""

    terms: ClassVar[tuple[str, ...]] = ("twist", "sop")  # type: ignore[misc]
    metrics: ClassVar[tuple[str, ...]] = (  # type: ignore[misc]
        *("twist_accuracy", "sop_accuracy", "sop_loss_in_order", "sop_loss_swapped", "sop_accuracy_in_order"),
        *("sop_accuracy_swapped", "echo_accuracy"),
    )
    headline = HEADLINE


@pytest.fixture
def run(tmp_path: Path) -> Path:
    summary = {**SUMMARY, "headline": HEADLINE, "data": {"held_out": COUNTS}, "steps": 10, "step": 10}
    folder = make_run(tmp_path / "run", [*LINES, {"kind": "eval", "step": 10, **EVALUATION}], summary)
    (folder / "run.json").write_text(json.dumps({"format": 2, "identity": {}, "attempts": 1, "id": "x"}))
    return folder


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    place = "tests.unit.pretrain.report.test_any_objective:Twisted"
    monkeypatch.setitem(OBJECTIVES, "twisted", Registered(place, ("sentence_order",)))


def test_figures_are_told_by_the_parts_of_their_names() -> None:
    assert metric("held_out_sop_accuracy_in_order") == metric("sop_accuracy_in_order")
    known = metric("sop_accuracy_in_order")
    assert known.prediction is not None
    assert (known.prediction.name, known.measure, known.pair_label) == ("sop", "accuracy", "in_order")
    assert metric("replaced_token_loss").label == "replaced token loss"
    assert metric("causal_perplexity").baseline.key == "causal_unigram_loss"  # type: ignore[union-attr]
    for name in ("loss", "lr", "tokens_per_s", "padding_share", "a" * 99 + "_loss"):
        assert metric(name).prediction is None, name
    assert headline_of({}) == "mask_loss"
    assert wrong_figure({"held_out_twist_accuracy": "high"}) == "held_out_twist_accuracy"


def test_words_of_an_unknown_headline() -> None:
    assert [str(score) for score in leading(EVALUATION, headline=HEADLINE)] == [
        "twist loss 0.620", TWIST, SOP,
    ]  # fmt: skip
    assert secondary(EVALUATION, headline=HEADLINE) == [
        ("echo", "loss 0.310"), ("loss that is minimised, SOP + echo + twist", "1.900")
    ]  # fmt: skip
    assert sum_of(LINES[0]) == "SOP + twist"
    assert [str(score) for score in leading({"held_out_bits": 3.5}, headline="bits")] == ["bits 3.500"]
    assert with_majority({}, COUNTS) == {"held_out_sop_majority": 0.52}


def test_the_verdict_knows_every_pair_task_and_headline() -> None:
    assert findings(EVALUATION, headline=HEADLINE) == []
    guessing = {**EVALUATION, "held_out_sop_accuracy": 0.53}
    assert [finding.kind for finding in findings(guessing, headline=HEADLINE)] == [PAIRS]
    causal = {"held_out_causal_loss": 6.5, "held_out_causal_unigram_loss": 6.4}
    (found,) = findings(causal, headline="causal_loss")
    assert found.kind == PLATEAU
    assert "at the next token the held-out loss is 6.500, not below the 6.400" in found.what


def test_console_and_panel(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=110, height=30, color_system=None)
    lines, panel = Lines(console, 10, HEADLINE), Panel(console, tmp_path, 10, headline=HEADLINE)
    lines.logged(LINES[0])
    lines.held_out(10, EVALUATION)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "step 1/10  twist loss 0.600  twist accuracy 80.0%  SOP + twist loss 1.980  lr" in said
    assert f"held-out: twist loss 0.620  {TWIST}  {SOP}" in said
    panel.begin(0, [])
    for line in LINES:
        panel.logged(line)
    panel.held_out(10, EVALUATION)
    with console.capture() as capture:
        console.print(panel._painted())
    for words in ("twist loss 0.600", TWIST, SOP, "SOP + twist loss 1.800"):
        assert words in capture.get(), words


def test_status_and_inspection(run: Path) -> None:
    said = in_words(read_status(run), "again")
    assert f"{TWIST}, {SOP}, held out" in said
    assert "(SOP + echo + twist)" in said
    facts = json.loads((run / "summary.json").read_text()) | EVALUATION | {"checkpoints": [], "where": {}}
    rows = dict(run_headlines(facts, LINES))
    assert rows["held-out twist accuracy"] == "78.0% (commonest answer 60.0%)"
    assert rows["held-out sentence-order accuracy"] == "72.0% (commoner label 52.0%)"
    assert rows["  echo"] == "loss 0.310"


def test_the_report(run: Path) -> None:
    page: Page = page_of(run)
    for words in (
        "On text it has not seen, its twist accuracy is 78.0%.", "Held-out twist loss", "Held-out twist accuracy",
        "Always the commonest answer would get 60.0%.", "Held-out sentence-order accuracy",
        "Always the commoner label would get 52.0%.", "Sentence-order accuracy, by pair label", "Swapped", "Twist loss",
        "Knowing only how many pairs are Swapped", "Total loss",
    ):  # fmt: skip
        assert words in page.text, words
    assert not re.search(r"\[MASK\]|next-sentence|NotNext", page.text)
    broken = [{**line, "twist_loss": float("nan")} if line["step"] == 5 else line for line in LINES]
    make_run(run, broken, json.loads((run / "summary.json").read_text()))
    assert any("the twist loss is not finite" in one.what for one in advice(read_run(run)))


def test_the_card() -> None:
    index: Any = SimpleNamespace(statistics={"held_out": COUNTS})
    rows = card._scores(EVALUATION, index, HEADLINE)
    assert isinstance(rows, dict)
    assert rows["twist accuracy"] == "78.0% (commonest answer 60.0%)"
    assert rows["not comparable: echo"] == "loss 0.310"
    assert list(card._published(EVALUATION, HEADLINE)) == [
        "held_out_twist_accuracy", "held_out_twist_loss", "held_out_sop_accuracy",
    ]  # fmt: skip


@pytest.mark.usefixtures("registered")
def test_the_dashboard() -> None:
    learning = sections("twisted")[0]
    titles = [panel.title for panel in learning.panels]
    assert titles[:2] == ["Twist loss", "Twist accuracy"]
    assert "Sentence-order accuracy, by pair label" in titles
    assert "[MASK]" not in learning.question + " ".join(titles)
    assert {
        *(
            "held_out_twist_majority",
            "held_out_sop_majority",
            "sop_accuracy_swapped",
            "held_out_echo_accuracy",
        ),
        *("twist_loss", "sop_loss", "held_out_sop_loss_swapped"),
    } <= keys_of([learning])


# `maskmill status` where clocks differ between machines, or were set by an hour or a year while a run goes on.


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
