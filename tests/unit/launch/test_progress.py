"""What takes long says so: a turning sign on a terminal, a line now and then in a batch log; what is quick does not."""

import io

import pytest
from rich.console import Console

from launch import progress
from tests.command_line import until


def console(terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=100)


def until_said(shown: Console, words: str) -> None:
    until(lambda: words in shown.file.getvalue())  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SHOW_AFTER_SECONDS", 0.02)
    monkeypatch.setattr(progress, "LINE_INTERVAL_SECONDS", 0.02)


@pytest.mark.parametrize("terminal", [True, False])
def test_a_wait_of_unknown_length(terminal: bool) -> None:
    shown = console(terminal)
    with progress.waiting(shown, "exporting"):
        until_said(shown, "exporting")
    assert shown.file.getvalue()  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="as it was"), progress.waiting(shown, "exporting"):
        raise ValueError("as it was")


@pytest.mark.parametrize("terminal", [True, False])
def test_what_is_quick_says_nothing(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SHOW_AFTER_SECONDS", 600.0)
    monkeypatch.setattr(progress, "LINE_INTERVAL_SECONDS", 600.0)
    shown = console(terminal)
    with progress.waiting(shown, "exporting"):
        pass
    with progress.late_stages(shown)("reading", 3) as advance:
        advance(3)
    assert shown.file.getvalue() == ""  # type: ignore[attr-defined]


def test_a_stage_that_is_stuck_is_heard_of_in_a_batch_log() -> None:
    """Learning a vocabulary ends with minutes in which nothing is counted."""
    shown = console(terminal=False)
    with progress.stages(shown)("learning", 0) as advance:
        advance(7)
        until_said(shown, "learning: 7\n")
        until_said(shown, "learning: 7\nlearning: 7\n")
    assert shown.file.getvalue().splitlines()[-1].startswith("learning: 7 in ")  # type: ignore[attr-defined]
