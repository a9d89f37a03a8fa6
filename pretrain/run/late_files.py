"""Wait for files that a network folder shows late: another machine wrote them, and this one does not see them yet.

NFS keeps what it knows of a folder for up to a minute (nfs(5), acdirmax).
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pretrain.config.settings import RunSettings

POLL_SECONDS = 0.5
"""How often a file that is not shown is looked for: each look is a question to the file server."""


def folder_wait(run: RunSettings) -> float:
    """Return run.folder_wait, and at most half of what a stage or step may take: the watchdog would end the wait."""
    return min([run.folder_wait, *(limit / 2 for limit in (run.stage_limit, run.step_limit) if limit)])


def wait_until_shown(
    not_shown: Callable[[], Path | None], seconds: float, say: Callable[[str], None] | None = None
) -> bool:
    """Wait until `not_shown` returns None, for at most so many seconds; return whether it did. Until then it returns a
    path that lacks. `say` gets a line if there is something to wait for."""
    lacks = not_shown()
    if lacks is not None and seconds and say is not None:
        say(
            f"{lacks} is not shown here: waiting up to {seconds:.0f} s for it, in case the folder shows it late "
            "(run.folder_wait)"
        )
    give_up = time.monotonic() + seconds
    while lacks is not None and time.monotonic() < give_up:
        with suppress(OSError):
            os.listdir(lacks.parent)  # opening a folder makes a client of NFS ask the server for it
        time.sleep(min(POLL_SECONDS, seconds))
        lacks = not_shown()
    return lacks is None
