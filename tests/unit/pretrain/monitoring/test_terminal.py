"""The live panel of a training: what it shows, where it is not shown, and that the terminal is whole after it."""

import io
import os
import pty
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pretrain.config.phases import Phase
from pretrain.config.settings import RunConfig, TrainSettings
from pretrain.monitoring import terminal as panel_module
from pretrain.monitoring.terminal import (
    ASCII_BLOCKS,
    MAX_LOSSES,
    Lines,
    Panel,
    open_view,
    shows_panels,
    sparkline,
)

LINE: dict[str, Any] = {
    "kind": "train", "step": 40, "loss": 5.4321, "mask_loss": 4.8, "mask_accuracy": 0.12, "mlm_loss": 4.75,
    "nsp_loss": 0.68, "lr": 1.25e-3, "tokens_per_s": 15_240.0, "mfu": 0.407,
    "step_ms": 212.0, "grad_norm": 0.92, "trust_ratio": 0.09, "data_wait_share": 0.012, "fill": 0.97, "memory_gb": 1.29,
}  # fmt: skip
EVALUATION: dict[str, Any] = {
    "held_out_loss": 5.61, "held_out_mlm_loss": 4.9, "held_out_mask_loss": 5.0, "held_out_mask_unigram_loss": 6.4,
    "held_out_mask_accuracy": 0.11, "held_out_mask_majority": 0.05, "held_out_mask_top_share": 0.2,
    "held_out_mask_top_token": "the", "held_out_nsp_accuracy": 0.7, "held_out_nsp_majority": 0.576,
}  # fmt: skip
PLATEAU: dict[str, Any] = {**EVALUATION, "held_out_mask_loss": 6.5, "held_out_mask_top_share": 0.97}


def phase(name: str = "") -> Phase:
    return Phase(0, name, RunConfig(train=TrainSettings(steps=100)), 0, 100)


def screen(width: int = 100, height: int = 30) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, height=height, color_system=None)


def painted(panel: Panel, console: Console) -> str:
    with console.capture() as capture:
        console.print(panel._painted())
    return capture.get()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands still unless it is set."""
    now = [1000.0]
    monkeypatch.setattr(panel_module, "clock", lambda: now[0])
    return now


def run_of(panel: Panel, clock: list[float], steps: int = 40) -> None:
    panel.begin(0, [])
    panel.enter(phase())
    for step in range(1, steps + 1):
        clock[0] += 0.5
        panel.step(step)
        panel.logged({**LINE, "step": step, "loss": 9 - 0.09 * step, "mask_loss": 8.5 - 0.09 * step})


def test_it_shows_what_goes_on(tmp_path: Path, clock: list[float]) -> None:
    console = screen()
    panel = Panel(console, tmp_path / "sea", 100)
    assert "not yet" in painted(panel, console)
    run_of(panel, clock)
    panel.held_out(40, EVALUATION)
    assert "held-out at [MASK]: loss 5.000" in console.file.getvalue()  # type: ignore[attr-defined]
    panel.probed(40, {"probe/blimp_accuracy": 61.25, "probe/blimp_trivial": 50.0})
    panel.saved(20, 1.5, 17_800_000)
    clock[0] += 12
    shown = painted(panel, console)
    for words in (
        "sea  training", "step 40 of 100  40%  30 s left", "at [MASK]", "loss 4.900  accuracy 12.0%",
        "loss 5.000 (unigram 6.400)   perplexity 148 (unigram 602)   step 40", "MLM + NSP loss 5.400",
        "accuracy 11.0% (most frequent token 5.0%)   NSP accuracy 70.0% (commoner label 57.6%)", "15,240 tokens/s",
        "40.7% of the peak (MFU)", "212 ms a step", "lr 1.25e-03", "gradient 0.92", "trust ratio 0.090",
        "waited for 1.2% of the time", "97% of the token budget used", "1.29 GB",
        "step 20, 17.8 MB in 1.5 s, 12 s ago", "32 s", "blimp accuracy 61.2 (trivial 50.0)   step 40",
    ):  # fmt: skip
        assert words in shown, words
    assert "look at" not in shown
    line = next(line for line in shown.splitlines() if "at [MASK]" in line)
    blocks = re.findall("[▁▂▃▄▅▆▇█]", line)
    assert len(blocks) > 20
    assert (blocks[0], blocks[-1]) == ("█", "▁")
    with panel.busy("evaluating"):
        assert "sea  evaluating" in painted(panel, console)
    assert "sea  training" in painted(panel, console)


def test_disturbances_stay_above_and_are_counted(tmp_path: Path, clock: list[float]) -> None:
    console = screen()
    panel = Panel(console, tmp_path / "[red]odd", 100)
    run_of(panel, clock)
    panel.disturbed("skip", "the gradient of batch 7 is [not] finite")
    panel.disturbed("skip", "the gradient of batch 9 is [not] finite")
    panel.slowdown(40, "waiting for data: the loader 30 ms of a step")
    above = console.file.getvalue()  # type: ignore[attr-defined]
    assert above.count("skip: the gradient of batch") == 2
    shown = painted(panel, console)
    assert "2 disturbances; waiting for data" in shown
    assert "[red]odd" in shown


def test_it_fits_small_and_plain_terminals(tmp_path: Path, clock: list[float]) -> None:
    for width, height in ((40, 30), (100, 8)):
        console = screen(width, height)
        panel = Panel(console, tmp_path / "run", 100)
        run_of(panel, clock)
        assert painted(panel, console).strip().count("\n") == 0
    narrow = screen(60, 24)
    panel = Panel(narrow, tmp_path / "run", 100)
    run_of(panel, clock)
    assert max(map(len, painted(panel, narrow).splitlines())) <= 60
    written = io.BytesIO()
    plain = io.TextIOWrapper(written, encoding="ascii")
    ascii_only = Console(file=plain, force_terminal=True, width=90, height=30, color_system=None)
    panel = Panel(ascii_only, tmp_path / "run", 100)
    run_of(panel, clock)
    ascii_only.print(panel._painted())
    plain.flush()
    assert b"step 40 of 100" in written.getvalue()
    assert re.search(rb"at \[MASK\] +loss 4.900 .* %+#+\*+", written.getvalue())


def test_time_left_is_judged_anew_in_a_phase(tmp_path: Path, clock: list[float]) -> None:
    console = screen()
    panel = Panel(console, tmp_path / "run", 100)
    run_of(panel, clock)
    panel.enter(phase("long"))
    assert "left" not in painted(panel, console)
    clock[0] += 4
    panel.step(41)
    shown = painted(panel, console)
    assert "phase long, 41 of 100" in shown
    assert "3 min 56 s left" in shown


def test_a_rollback_takes_the_steps_back(tmp_path: Path, clock: list[float]) -> None:
    console = screen()
    panel = Panel(console, tmp_path / "run", 100)
    run_of(panel, clock)
    panel.rolled_back(20)
    assert "step 20 of 100" in painted(panel, console)
    clock[0] += 4
    panel.step(21)
    assert "5 min 16 s left" in painted(panel, console)


def test_very_many_losses_are_thinned(tmp_path: Path, clock: list[float]) -> None:
    panel = Panel(screen(), tmp_path / "run", 10**6)
    panel.begin(0, [{**LINE, "step": step, "mask_loss": float(step)} for step in range(5000)])
    assert MAX_LOSSES / 2 <= len(panel._losses) <= MAX_LOSSES
    assert panel._losses == sorted(panel._losses)
    assert panel._losses[-1] > 4900


def test_sparklines() -> None:
    assert sparkline([1, 2, 3], 10, "abc") == "abc"
    assert sparkline([1, 1], 10, "abc") == "aa"
    assert sparkline([float(i) for i in range(100)], 4, "abcd") == "abcd"
    assert len(ASCII_BLOCKS) == 8
    assert ASCII_BLOCKS.isascii()


def test_panels_are_for_people_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CI", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w") as terminal:
        console = Console(file=terminal)
        assert shows_panels(console, {})
        assert shows_panels(console, {"CI": "false"})
        assert not shows_panels(console, {"CI": "true"})
        assert type(open_view(console, True, tmp_path, 9)) is Panel
        assert type(open_view(console, False, tmp_path, 9)) is Lines
        monkeypatch.setenv("TERM", "dumb")
        assert not shows_panels(Console(file=terminal), {})
    os.close(leader)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert not shows_panels(Console(file=io.StringIO(), force_terminal=True), {})  # as FORCE_COLOR has it


def written(console: Console) -> list[str]:
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined,no-any-return]


def test_lines_are_plain_and_the_same_as_ever(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=40)
    with open_view(console, True, tmp_path, 900) as lines:
        lines.begin(0, [])
        lines.enter(phase("short"))
        lines.step(1)
        lines.logged(LINE)
        with lines.busy("evaluating"):
            lines.held_out(40, EVALUATION)
        lines.probed(40, {"probe/own_pearson": 7.0})
        lines.disturbed("skip", "batch 3 [is] bad")
        lines.saved(40, 1.0, 9)
    assert written(console) == [
        "phase short: steps 1 to 100",
        "step 40/900  [MASK] loss 4.800  accuracy 12.0%  perplexity 122  MLM + NSP loss 5.432  lr 1.25e-03  "
        "15,240 tokens/s",
        "step 40  held-out at [MASK]: loss 5.000 (unigram 6.400)  accuracy 11.0% (most frequent token 5.0%)  "
        "perplexity 148 (unigram 602)  NSP accuracy 70.0% (commoner label 57.6%)",
        "step 40  probe: own pearson 7.0",
        "skip: batch 3 [is] bad",
    ]


def test_lines_of_other_objectives_and_older_runs(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=40)
    with open_view(console, True, tmp_path, 900) as lines:
        lines.logged({"kind": "train", "step": 1, "loss": None, "lr": 0.1, "tokens_per_s": 5.0})
        lines.held_out(1, {"held_out_loss": 5.0, "held_out_mlm_loss": 4.5})
    assert written(console) == [
        "step 1/900  total loss not a number  lr 1.00e-01  5 tokens/s",
        "step 1  held-out: MLM loss 5.000",
    ]


def warnings(console: Console) -> list[str]:
    return [line for line in written(console) if line.startswith(("No context", "The loss is", "The pair"))]


def test_the_plateau_is_named_once_and_again_at_the_end(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=40)
    with open_view(console, True, tmp_path, 100) as lines:
        lines.held_out(0, PLATEAU)
        assert warnings(console) == [], "before the first step nothing can have been learnt"
        lines.held_out(40, PLATEAU)
        lines.held_out(60, PLATEAU)
        assert len(warnings(console)) == 1
        assert '"the" at 97%' in warnings(console)[0]
        lines.held_out(100, PLATEAU)
    assert len(warnings(console)) == 2


def test_a_loss_that_rose_is_named_at_the_end(tmp_path: Path) -> None:
    for name in ("lines", "panel"):
        console = Console(file=io.StringIO(), width=40)
        view = Lines(console, 100) if name == "lines" else Panel(console, tmp_path, 100)
        with view as lines:
            lines.begin(10, [{**LINE, "step": step, "loss": 9.0} for step in range(10)])
            for step in range(10, 100):
                lines.logged({**LINE, "step": step, "loss": 30.0})
            assert warnings(console) == []
        assert [line[:50] for line in warnings(console)] == [
            "The loss is higher than where the run began: 30.00"
        ]


def test_an_attempt_that_fails_ends_without_a_verdict(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=40)
    lines = Lines(console, 100)
    for step in (1, 2, 3):
        lines.logged({**LINE, "step": step, "loss": 9.0 * step})
    lines.__exit__(OSError, OSError("full"), None)
    assert warnings(console) == []


def test_the_panel_says_what_is_wrong_with_what_is_learnt(tmp_path: Path, clock: list[float]) -> None:
    console = screen()
    panel = Panel(console, tmp_path / "sea", 100)
    run_of(panel, clock)
    panel.held_out(40, PLATEAU)
    assert re.search(r"look at +No context has been learnt yet", painted(panel, console))
    panel.held_out(60, EVALUATION)
    assert "look at" not in painted(panel, console)
