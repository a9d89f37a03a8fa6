"""What happens in a run in; lines on a console out: what a batch log holds, and what a live panel keeps above itself.

`Lines` is plain. pretrain/panel.py has the view for a terminal, with the same methods; `opened` chooses.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console

from pretrain.phases import Phase


class Lines:
    """A line for each log step, evaluation, phase and disturbance."""

    def __init__(self, console: Console, last: int) -> None:
        self._console, self._last = console, last

    def __enter__(self) -> "Lines":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is left to put away."""

    def begin(self, step: int, lines: list[dict[str, Any]]) -> None:
        """This life goes on from `step`; `lines`: what metrics.jsonl has of the lives before."""

    def enter(self, phase: Phase) -> None:
        """Steps of this phase follow."""
        if phase.name:
            words = f"phase {phase.name}: steps {phase.first + 1:,} to {phase.last:,}"
            self._console.print(words, soft_wrap=True, highlight=False)

    def step(self, step: int) -> None:
        """A step is done."""

    def rolled_back(self, step: int) -> None:
        """The run is at this earlier step again."""

    def figures(self, line: dict[str, Any]) -> None:
        """A line of metrics.jsonl was written."""
        self._console.print(f"step {line['step']:,}/{self._last:,}  {in_short(line)}", highlight=False)

    def held_out(self, step: int, figures: Mapping[str, Any]) -> None:
        """The model was evaluated."""
        self._console.print(f"step {step:,}  held-out: {_in_words(figures)}", soft_wrap=True)

    def held_up(self, step: int, words: str) -> None:
        """Something slows the run down."""
        self._console.print(f"step {step:,}  {words}", soft_wrap=True, highlight=False)

    def disturbed(self, kind: str, words: str) -> None:
        """A batch was skipped, taken back, or lacked examples."""
        self._console.print(f"{kind}: {words}", soft_wrap=True, style="yellow", markup=False)

    def warn(self, words: str) -> None:
        """Something went wrong that does not end the run."""
        self._console.print(f"maskmill: WARNING: {words}", soft_wrap=True, markup=False, style="bold red")

    def saved(self, step: int, seconds: float, size: int) -> None:
        """A checkpoint became whole."""

    @contextmanager
    def busy(self, words: str) -> Iterator[None]:
        """While something other than steps goes on."""
        yield


def opened(
    console: Console, live: bool, folder: Path, last: int, phases: Sequence[dict[str, Any]] = ()
) -> Lines:
    """The view of a run of `last` steps in `phases` (as summary.json has them): a live panel where `live` asks for one
    and `console` can show it."""
    if live and shows_panels(console, os.environ):
        from pretrain.panel import Panel

        return Panel(console, folder, last, phases)
    return Lines(console, last)


def shows_panels(console: Console, environment: Mapping[str, str]) -> bool:
    """Whether `console` is a terminal in front of a person: not a file or a pipe (whatever FORCE_COLOR says), not a
    dumb terminal, not that of a CI job."""
    in_ci = environment.get("CI", "").lower() not in ("", "0", "false")
    return console.is_terminal and console.file.isatty() and not console.is_dumb_terminal and not in_ci


def in_short(line: dict[str, Any]) -> str:
    """The figures of a log step that fit a line."""
    return f"loss {_said(line, 'loss')}  lr {line['lr']:.2e}  {line['tokens_per_s']:,.0f} tokens/s"


def _in_words(figures: Mapping[str, Any]) -> str:
    parts = [
        f"loss at [MASK] {_said(figures, 'held_out_mask_loss')} "
        f"(unigram {_said(figures, 'held_out_mask_unigram_loss')})"
    ]
    if "held_out_nsp_accuracy" in figures:
        parts.append(f" NSP accuracy {figures['held_out_nsp_accuracy']:.1%}")
    return " ".join(parts)


def _said(figures: Mapping[str, Any], name: str) -> str:
    value = figures.get(name)
    return f"{value:.3f}" if isinstance(value, int | float) else "not a number"
