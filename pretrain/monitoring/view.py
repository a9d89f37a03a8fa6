"""Choose how a run is shown: as a live panel in a terminal, or as lines."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from pretrain.monitoring.console import Lines
from pretrain.run.metrics import HEADLINE


def open_view(
    console: Console,
    live: bool,
    folder: Path,
    last: int | None,
    phases: Sequence[Mapping[str, Any]] = (),
    headline: str = HEADLINE,
) -> Lines:
    """Open the view of a run of `last` steps (None: unknown) in `phases` (run/time_left.py) with the metric `headline`
    first: a live panel if `live` asks for one and `console` can show it."""
    if live and shows_panels(console, os.environ):
        from pretrain.monitoring.live_panel import Panel

        return Panel(console, folder, last, phases, headline)
    return Lines(console, last, headline)


def shows_panels(console: Console, environment: Mapping[str, str]) -> bool:
    """Return whether `console` is an interactive terminal: not a file or a pipe (regardless of FORCE_COLOR), not a dumb
    terminal, not that of a CI job."""
    in_ci = environment.get("CI", "").lower() not in ("", "0", "false")
    return console.is_terminal and console.file.isatty() and not console.is_dumb_terminal and not in_ci
