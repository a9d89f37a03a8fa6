"""A console in; progress bars on a terminal, a plain line a stage in a batch log, out."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)

from data_pipeline.executors import Stage


def stages(console: Console) -> Stage:
    """Shows how far each stage is, on whatever `console` writes to."""
    return _bars(console) if console.is_terminal else _lines(console)


def late_stages(console: Console, seconds: float = 2.0) -> Stage:
    """As `stages`, for what is mostly quick: nothing is shown of a stage that ends within so many seconds."""
    shown = stages(console)

    @contextmanager
    def stage(name: str, total: int) -> Iterator[Callable[[int], None]]:
        started, waiting, show = time.monotonic(), 0, None
        with ExitStack() as stack:

            def advance(n: int) -> None:
                nonlocal waiting, show
                waiting += n
                if show is None and time.monotonic() - started > seconds:
                    show = stack.enter_context(shown(name, total))
                if show is not None:
                    show(waiting)
                    waiting = 0

            yield advance

    return stage


@contextmanager
def late(console: Console, words: str, seconds: float = 2.0) -> Iterator[None]:
    """Shows on a terminal that something goes on, once it has for so many seconds; in a batch log nothing. Nothing else
    may be shown in place meanwhile."""
    if not console.is_terminal:
        yield
        return
    status = console.status(words)
    timer = threading.Timer(seconds, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        status.stop()


def _bars(console: Console) -> Stage:
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


def _lines(console: Console) -> Stage:
    @contextmanager
    def stage(name: str, total: int) -> Iterator[Callable[[int], None]]:
        started, last, done = time.monotonic(), time.monotonic(), 0

        def advance(n: int) -> None:
            nonlocal done, last
            done += n
            if time.monotonic() - last > 30:
                last = time.monotonic()
                console.print(f"{name}: {done:,}" + (f" of {total:,}" if total else ""))

        yield advance
        console.print(f"{name}: {done:,} in {time.monotonic() - started:.1f} s")

    return stage
