"""End a process that hangs, with its stack in its log, unless it is fed before a time limit.

One hanging rank, for example on a dead disk, blocks all others in the next collective. Every rank has a watchdog,
so that each log shows where its rank was.
"""

import faulthandler
import os
import signal
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from pretrain.config.settings import RunConfig
from pretrain.distributed.world import World

STACK_SECONDS = 5.0
"""Seconds between writing the stack and ending the process, so that the other ranks' timeouts write theirs too."""


class Watchdog:
    """End the process if it goes without `feed` for `limit` seconds while open (0: no limit).

    Neither part needs the interpreter, which a hang may hold: faulthandler's own thread writes the stacks of all
    threads, and the kernel's alarm ends the process by SIGALRM. The launcher restarts it."""

    def __init__(self, limit: float, log: Path) -> None:
        self._limit, self._path = limit, log

    def __enter__(self) -> "Watchdog":
        if self._limit:
            self._log = self._opened()
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            self.feed()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._limit:
            faulthandler.cancel_dump_traceback_later()
            signal.setitimer(signal.ITIMER_REAL, 0)
            self._log.close()

    def _opened(self) -> IO[Any]:
        """Open the log; do not recreate a deleted run folder."""
        try:
            self._path.parent.mkdir(exist_ok=True)
            return self._path.open("ab")
        except OSError:
            return os.fdopen(os.dup(2), "ab")

    def feed(self) -> None:
        """Restart the timer after progress."""
        if self._limit:
            faulthandler.dump_traceback_later(self._limit, file=self._log)
            signal.setitimer(signal.ITIMER_REAL, self._limit + STACK_SECONDS)


def rank_log(config: RunConfig, world: World) -> Path:
    """Return the file to which a hanging rank writes its stack."""
    return Path(config.run.dir) / "logs" / f"rank-{world.rank}.log"


def patience(config: RunConfig) -> timedelta:
    """Return how long ranks wait for each other: longer than the step limit, so that the watchdog fires first."""
    return timedelta(seconds=max(1800.0, config.run.step_limit + 600.0))
