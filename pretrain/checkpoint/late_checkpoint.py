"""Wait for a checkpoint that a network folder shows late.

With a file taken for missing it would count as damaged; a run whose newest one is not shown would go on from the one
before, or start over.
"""

import time
from collections.abc import Callable
from pathlib import Path

from data_pipeline.errors import UserError
from pretrain.checkpoint.store import (
    DAMAGED,
    FOLDER,
    LATEST,
    MARKER,
    checkpoints,
    latest_folder,
    parsed_checkpoint,
)
from pretrain.run.files import wait_until_shown


def wait_for_newest(run: Path, seconds: float, say: Callable[[str], None]) -> None:
    """Wait, for at most so many seconds, until this machine sees all files of the checkpoint that `latest` names,
    unless that was set aside; and first for `latest` itself, which only the first save lacks. `say` gets a line
    if there is something to wait for. What then still lacks is for the reader to judge as damage."""
    give_up, latest = time.monotonic() + seconds, run / FOLDER / LATEST
    wait_until_shown(lambda: None if latest.is_file() or not checkpoints(run) else latest, seconds, say)
    folder = latest_folder(run)
    if folder is not None and not folder.with_name(folder.name + DAMAGED).exists():
        wait_for_files(folder, max(0.0, give_up - time.monotonic()), say)


def wait_for_files(folder: Path, seconds: float, say: Callable[[str], None]) -> None:
    """Wait, as `wait_for_newest` does, until this machine sees all files of the checkpoint in `folder`."""
    wait_until_shown(lambda: _not_shown(folder), seconds, say)


def _not_shown(folder: Path) -> Path | None:
    """Return the first file of a checkpoint that is not there, or shorter than its marker says; None if there is none,
    or if the marker is damaged or of another version, which no waiting mends."""
    marker = folder / MARKER
    try:
        files = parsed_checkpoint(folder, marker.read_bytes()).files
    except OSError:  # among them ESTALE
        return marker
    except UserError:
        return None
    return next((path for f in files if _size_shown(path := folder / f["file"]) < f["bytes"]), None)


def _size_shown(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # among them ESTALE, of a file that the server has replaced
        return -1
