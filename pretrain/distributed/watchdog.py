"""End a process that hangs, with its stack in its log, unless it is fed before a time limit.

A hang has one cause and many victims: a rank that waits for a dead disk holds up all others in the next collective.
Every rank has a watchdog, so that the log of each says where it stood.
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
"""Seconds between the stack and the end: the other ranks, whose clocks run out a little later, write theirs."""


class Watchdog:
    """While it is open, the process may not go without `feed` for `limit` seconds (0: for ever).

    Neither part needs the interpreter, which a hang may hold: faulthandler's own thread writes the stacks of all
    threads, and the kernel's alarm ends the process by SIGALRM. Whoever started it starts it again."""

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
        """A run folder that has gone is not made anew: what comes back in its place would lie inside it."""
        try:
            self._path.parent.mkdir(exist_ok=True)
            return self._path.open("ab")
        except OSError:
            return os.fdopen(os.dup(2), "ab")

    def feed(self) -> None:
        """Something came to its end: the time begins anew."""
        if self._limit:
            faulthandler.dump_traceback_later(self._limit, file=self._log)
            signal.setitimer(signal.ITIMER_REAL, self._limit + STACK_SECONDS)


def rank_log(config: RunConfig, world: World) -> Path:
    """Where a rank that hangs leaves its stack."""
    return Path(config.run.dir) / "logs" / f"rank-{world.rank}.log"


def patience(config: RunConfig) -> timedelta:
    """How long ranks wait for each other: longer than a step may take, so that the watchdog speaks first."""
    return timedelta(seconds=max(1800.0, config.run.step_limit + 600.0))
