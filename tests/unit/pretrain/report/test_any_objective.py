"""Every viewer shows a run of an objective that it does not know: an invented headline, and the pair task `sop`."""

import io
import json
import re
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
from pretrain.report.status import in_words, read_status
from pretrain.report.summary import advice
from pretrain.run.metrics import (
    PAIRS,
    PLATEAU,
    findings,
    headline_of,
    leading,
    metric,
    secondary,
    sum_of,
    with_majority,
)
from pretrain.run.metrics_log import wrong_figure
from tests.unit.pretrain.report.test_report import SUMMARY, Page, make_run, page_of

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
    found = metric("sop_accuracy_in_order")
    assert found is not None
    assert (found.kind.name, found.what, found.label) == ("sop", "accuracy", "in_order")
    assert metric("replaced_token_loss").said == "replaced token loss"  # type: ignore[union-attr]
    assert metric("causal_perplexity").baseline == "causal_unigram_loss"  # type: ignore[union-attr]
    assert [metric(name) for name in ("loss", "lr", "tokens_per_s", "padding_share", "a" * 99 + "_loss")] == [
        None
    ] * 5
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
    lines.figures(LINES[0])
    lines.held_out(10, EVALUATION)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "step 1/10  twist loss 0.600  twist accuracy 80.0%  SOP + twist loss 1.980  lr" in said
    assert f"held-out: twist loss 0.620  {TWIST}  {SOP}" in said
    panel.begin(0, [])
    for line in LINES:
        panel.figures(line)
    panel.held_out(10, EVALUATION)
    with console.capture() as capture:
        console.print(panel._painted())
    for words in ("twist loss 0.600", TWIST, SOP, "SOP + twist loss 1.8000"):
        assert words in capture.get(), words


def test_status_and_inspection(run: Path) -> None:
    said = in_words(read_status(run), "again")
    assert f"{TWIST}, {SOP}, held out" in said
    assert "(SOP + echo + twist)" in said
    facts = json.loads((run / "summary.json").read_text()) | EVALUATION | {"checkpoints": [], "where": {}}
    rows = dict(run_headlines(facts, LINES))
    assert rows["held-out twist accuracy"] == "78.0% (commonest answer: 60.0%)"
    assert rows["held-out SOP accuracy"] == "72.0% (commoner label: 52.0%)"
    assert rows["  echo"] == "loss 0.310"


def test_the_report(run: Path) -> None:
    page: Page = page_of(run)
    for words in (
        "On text it has not seen, its twist accuracy is 78.0 %.", "Held-out twist loss", "Held-out twist accuracy",
        "Always the commonest answer would get 60.0 %.", "Held-out sentence-order accuracy",
        "One answer for all pairs would get 52.0 %.", "Sentence-order accuracy, by pair label", "Swapped", "Twist loss",
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
    assert rows["twist accuracy"] == "78.0% (without any context, commonest answer: 60.0%)"
    assert rows["not comparable: echo"] == "loss 0.310"
    assert list(card._published(EVALUATION, HEADLINE)) == [
        "held_out_twist_accuracy", "held_out_twist_loss", "held_out_sop_accuracy",
    ]  # fmt: skip


@pytest.mark.usefixtures("registered")
def test_the_dashboard() -> None:
    learning = sections("twisted")[0]
    titles = [panel.title for panel in learning.panels]
    assert titles[:2] == ["Twist loss", "Twist accuracy, and of the commonest answer"]
    assert "Accuracy by pair label" in titles
    assert "[MASK]" not in learning.question + " ".join(titles)
    assert {
        *(
            "held_out_twist_majority",
            "held_out_sop_majority",
            "sop_accuracy_swapped",
            "held_out_echo_accuracy",
        ),
        *("twist_loss", "sop_loss"),
    } <= keys_of([learning])
