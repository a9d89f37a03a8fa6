"""End a process that hangs, with its stack in its log, unless it comes to its next stage or step before a time limit.

One hanging rank, for example on a dead disk, blocks all others in the next collective. Every rank has a watchdog, from
the import of torch to the exit of its process, so that each log shows where its rank was. Does not import torch.
"""

import faulthandler
import math
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

from data_pipeline.io.files import open_unlinked, own_folder
from pretrain.config.settings import RunSettings

STACK_SECONDS = 5.0
"""Seconds between writing the stack and ending the process, so that the other ranks' timeouts write theirs too."""
STEPS = "a step, an evaluation or a save"

HUNG = "Timeout ("
"""How the line begins that faulthandler writes above the stacks of a process that hangs."""

_STAGE = re.compile(r"\[[-0-9]+ [0-9:]+\] (.+) \((run\.\w+): \S+ s\)")
_LOG = re.compile(r"rank-[0-9]+\.log$")
_STDERR = 2


class Watchdog:
    """Ends this process if a stage of its start or end takes longer than run.stage_limit, or a step longer than
    run.step_timeout (seconds; 0: no limit). The timers are the process's: it has one watchdog, on its main thread.

    Neither part needs the interpreter, which a hang may hold: faulthandler's own thread writes the stacks of all
    threads, and the kernel's alarm ends the process by SIGALRM. The launcher restarts it. Where the interpreter is
    free, as in a rank that waits for another one, a line after the stacks says so. Nothing stops a watchdog, since a
    process may also hang as it ends."""

    def __init__(self, run: RunSettings) -> None:
        self._run, self._log, self._limit = run, _STDERR, 0.0
        self._rank, self._what, self._due = os.environ.get("RANK", "0"), "", math.inf
        self.on_hang: Callable[[str], None] | None = None
        """Called with the cause of a hang before the process ends, in a thread, where the interpreter is free."""
        self._begun, self._teller = threading.Event(), threading.Thread(target=self._tell, daemon=True)

    def log_in(self, folder: Path, rank: int) -> None:
        """Write to this rank's log in the run folder, which is this run's, instead of to standard error. Does not
        recreate a deleted folder."""
        self._rank = str(rank)
        path = folder / "logs" / f"rank-{rank}.log"
        with suppress(OSError):
            own_folder(path.parent)
            self._log = open_unlinked(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def stage(self, name: str) -> None:
        """Begin a stage of the start or of the end. All ranks begin the same ones, in the same order."""
        self._begin(name, "stage_limit")

    @contextmanager
    def steps(self) -> Iterator[None]:
        """Return a context for the training loop, with `feed` before each step, evaluation and save."""
        self._begin(STEPS, "step_timeout")
        try:
            yield
        finally:
            self.stage("leaving the training loop")

    def feed(self) -> None:
        """Restart the timer of the present stage: there was progress."""
        if self._limit:
            self._due = time.monotonic() + self._limit + STACK_SECONDS / 2
            faulthandler.dump_traceback_later(self._limit, file=self._log)
            signal.setitimer(signal.ITIMER_REAL, self._limit + STACK_SECONDS)
        else:
            self._due = math.inf
            faulthandler.cancel_dump_traceback_later()
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _begin(self, name: str, setting: str) -> None:
        self._limit = getattr(self._run, setting)
        self._what = f"{name} took longer than run.{setting} ({self._limit:g} s)"
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        self.feed()  # first, since writing may hang too
        self._begun.set()
        if self._limit and not self._teller.is_alive():
            self._teller.start()
        if self._log == _STDERR and not _is_rank_log(_STDERR):
            return  # a person's terminal, say
        line = f"[{time.strftime('%Y-%m-%d %H:%M:%S')}] {name} (run.{setting}: {self._limit:g} s)\n"
        with suppress(OSError):
            os.write(self._log, line.encode())

    def _tell(self) -> None:
        """Say, between the stacks and the end, why this rank ends."""
        while True:
            wait = None if self._due == math.inf else max(0.0, self._due - time.monotonic())
            if self._begun.wait(wait):
                self._begun.clear()
            elif time.monotonic() >= self._due:  # not fed meanwhile
                with suppress(OSError):
                    os.write(self._log, f"{self._line()}\n".encode())
                if self.on_hang is not None:
                    with suppress(Exception):  # whatever it is, the end of the process must not wait for it
                        self.on_hang(self._what)
                self._begun.wait()  # until the end, unless what took so long has come to its end first

    def _line(self) -> str:
        who = f"maskmill: rank {self._rank} on {os.uname().nodename} ends"
        follows = "its stacks are above; started again, the run goes on from its newest checkpoint"
        return f"{who}: {self._what}; {follows}"


def stage_in(line: str) -> tuple[str, str] | None:
    """Return the stage whose begin this line of a rank's log tells, and the setting that limits it; None for another
    line."""
    found = _STAGE.fullmatch(line.strip())
    return None if found is None else (found[1], found[2])


def hang_in(log: str) -> tuple[float, str] | None:
    """Return when the stage began whose time limit a rank's log says was passed last, in seconds since 1970, and the
    stage with its limit; None where none was. Of a process whose interpreter was held, its log alone knows."""
    stage = found = None
    for line in log.splitlines():
        if match := _STAGE.fullmatch(line.strip()):
            began = time.mktime(time.strptime(line.strip()[1:20], "%Y-%m-%d %H:%M:%S"))
            stage = began, f"{match[1]} took longer than {match[2]}"
        elif line.startswith(HUNG) and stage:
            found = stage
    return found


def patience(run: RunSettings) -> timedelta:
    """Return how long ranks wait for each other: longer than the limits, so that the watchdog ends them first."""
    return timedelta(seconds=max(1800.0, run.step_timeout + 600.0, run.stage_limit + 600.0))


def _is_rank_log(descriptor: int) -> bool:
    """Return whether a launcher has made the log of this rank its standard error (Linux; elsewhere False)."""
    with suppress(OSError):
        return _LOG.search(os.readlink(f"/proc/self/fd/{descriptor}")) is not None
    return False
