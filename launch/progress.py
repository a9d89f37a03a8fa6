"""Show progress: bars on a terminal, a plain line per stage in a batch log."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from data_pipeline.records import ShowProgress

SHOW_AFTER_SECONDS = 2.0
"""Seconds after which a wait is shown."""
LINE_INTERVAL_SECONDS = 30.0
"""Seconds between two lines of the same stage in a batch log."""


def stages(console: Console) -> "ShowProgress":
    """Show the progress of each stage on `console`."""
    return _bars(console) if console.is_terminal else _lines(console)


def late_stages(console: Console, seconds: float | None = None) -> "ShowProgress":
    """Show progress like `stages`, but only of stages that take longer than `seconds` (default: two on a terminal,
    the interval between two lines in a batch log)."""
    shown, patience = stages(console), SHOW_AFTER_SECONDS if console.is_terminal else LINE_INTERVAL_SECONDS
    patience = patience if seconds is None else seconds

    @contextmanager
    def stage(name: str, total: int) -> Iterator[Callable[[int], None]]:
        started, waiting, show = time.monotonic(), 0, None
        with ExitStack() as stack:

            def advance(n: int) -> None:
                nonlocal waiting, show
                waiting += n
                if show is None and time.monotonic() - started > patience:
                    show = stack.enter_context(shown(name, total))
                if show is not None:
                    show(waiting)
                    waiting = 0

            yield advance

    return stage


@contextmanager
def waiting(console: Console, doing: str) -> Iterator[None]:
    """Show that work without measurable progress is running: a spinner after two seconds, or in a batch log an
    occasional line."""
    started = time.monotonic()
    if not console.is_terminal:
        with _ticking(
            LINE_INTERVAL_SECONDS, LINE_INTERVAL_SECONDS, lambda: _say_time(console, doing, started)
        ):
            yield
        return
    shown = console.status(doing)
    try:
        with _ticking(SHOW_AFTER_SECONDS, threading.TIMEOUT_MAX, shown.start):
            yield
    finally:
        shown.stop()


@contextmanager
def _ticking(first: float, apart: float, call: Callable[[], None]) -> Iterator[None]:
    """Call `call` from another thread after `first` seconds, and then every `apart` seconds."""
    over = threading.Event()

    def tick() -> None:
        pause = first
        while not over.wait(pause):
            call()
            pause = apart

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _say_time(console: Console, doing: str, started: float) -> None:
    console.print(f"{doing}: {time.monotonic() - started:.0f} s", soft_wrap=True, markup=False)


def _bars(console: Console) -> "ShowProgress":
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    @contextmanager
    def stage(name: str, total: int) -> Iterator[Callable[[int], None]]:
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console) as progress:
            task = progress.add_task(name, total=total or None)
            yield lambda n: progress.advance(task, n)

    return stage


def _lines(console: Console) -> "ShowProgress":
    @contextmanager
    def stage(name: str, total: int) -> Iterator[Callable[[int], None]]:
        started, done = time.monotonic(), 0

        def advance(n: int) -> None:
            nonlocal done
            done += n

        def tell() -> None:
            console.print(f"{name}: {done:,}" + (f" of {total:,}" if total else ""))

        with _ticking(LINE_INTERVAL_SECONDS, LINE_INTERVAL_SECONDS, tell):
            yield advance
        console.print(f"{name}: {done:,} in {time.monotonic() - started:.1f} s")

    return stage
