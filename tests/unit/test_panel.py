"""The live panel of a training: what it shows, where it is not shown, and that the terminal is whole after it."""

import io
import os
import pty
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pretrain import panel as panel_module
from pretrain.config import RunConfig, TrainSettings
from pretrain.panel import KEPT, PLAIN, Panel, sparkline
from pretrain.phases import Phase
from pretrain.terminal import Lines, opened, shows_panels

LINE: dict[str, Any] = {
    "kind": "train", "step": 40, "loss": 5.4321, "lr": 1.25e-3, "tokens_per_s": 15_240.0, "mfu": 0.407,
    "step_ms": 212.0, "grad_norm": 0.92, "trust_ratio": 0.09, "data_wait_share": 0.012, "fill": 0.97, "memory_gb": 1.29,
}  # fmt: skip
EVALUATION = {"held_out_loss": 5.61, "held_out_mask_loss": 5.0, "held_out_mask_unigram_loss": 6.4}


def phase(name: str = "") -> Phase:
    return Phase(0, name, RunConfig(train=TrainSettings(steps=100)), 0)


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
        panel.figures({**LINE, "step": step, "loss": 9 - 0.09 * step})


def test_it_shows_what_goes_on(tmp_path: Path, clock: list[float]) -> None:
    console = screen()
    panel = Panel(console, tmp_path / "sea", 100)
    assert "not yet" in painted(panel, console)
    run_of(panel, clock)
    panel.held_out(40, EVALUATION)
    panel.saved(20, 1.5, 17_800_000)
    clock[0] += 12
    shown = painted(panel, console)
    for words in (
        "sea  training", "step 40 of 100  40%  30 s left", "5.4000", "held-out 5.6100 at step 40", "15,240 tokens/s",
        "40.7% of the peak (MFU)", "212 ms a step", "rate 1.25e-03", "gradient 0.92", "trust ratio 0.090",
        "waited for 1.2% of the time", "batches 97% full", "1.29 GB", "step 20, 17.8 MB in 1.5 s, 12 s ago", "32 s",
    ):  # fmt: skip
        assert words in shown, words
    assert "look at" not in shown
    line = next(line for line in shown.splitlines() if "held-out" in line)
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
    panel.held_up(40, "waiting for data: the loader 30 ms of a step")
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
    assert re.search(rb"loss +5.4000 +%+#+\*+", written.getvalue())


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
    panel.begin(0, [{**LINE, "step": step, "loss": float(step)} for step in range(5000)])
    assert KEPT / 2 <= len(panel._losses) <= KEPT
    assert panel._losses == sorted(panel._losses)
    assert panel._losses[-1] > 4900


def test_sparklines() -> None:
    assert sparkline([1, 2, 3], 10, "abc") == "abc"
    assert sparkline([1, 1], 10, "abc") == "aa"
    assert sparkline([float(i) for i in range(100)], 4, "abcd") == "abcd"
    assert len(PLAIN) == 8
    assert PLAIN.isascii()


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
        assert type(opened(console, True, tmp_path, 9)) is Panel
        assert type(opened(console, False, tmp_path, 9)) is Lines
        monkeypatch.setenv("TERM", "dumb")
        assert not shows_panels(Console(file=terminal), {})
    os.close(leader)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert not shows_panels(Console(file=io.StringIO(), force_terminal=True), {})  # as FORCE_COLOR has it


def test_lines_are_plain_and_the_same_as_ever(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=40)
    with opened(console, True, tmp_path, 900) as lines:
        lines.begin(0, [])
        lines.enter(phase("short"))
        lines.step(1)
        lines.figures(LINE)
        with lines.busy("evaluating"):
            lines.held_out(40, {**EVALUATION, "held_out_nsp_accuracy": 0.5})
        lines.disturbed("skip", "batch 3 [is] bad")
        lines.saved(40, 1.0, 9)
    assert console.file.getvalue().splitlines() == [  # type: ignore[attr-defined]
        "phase short: steps 1 to 100",
        "step 40/900  loss 5.432  lr 1.25e-03  ",
        "15,240 tokens/s",
        "step 40  held-out: loss at [MASK] 5.000 (unigram 6.400)  NSP accuracy 50.0%",
        "skip: batch 3 [is] bad",
    ]
