"""Wait for a checkpoint that a network folder shows late.

With a file taken for missing it would count as damaged; a run whose newest one is not shown would go on from the one
before, or start over.
"""

from collections.abc import Callable
from pathlib import Path

from pretrain.checkpoint.marker import Damaged
from pretrain.checkpoint.store import DAMAGED, FOLDER, LATEST, MARKER, latest_folder, open_checkpoint
from pretrain.run.late_files import size_shown, wait_until_shown


def wait_for_newest(run: Path, seconds: float, say: Callable[[str], None]) -> None:
    """Wait, for at most so many seconds, until this machine sees all files of the checkpoint that `latest` names,
    unless that was set aside; and first for `latest` itself, which only the very first save lacks. `say` gets a line
    if there is something to wait for. What then still lacks is for the reader to judge as damage."""
    latest = run / FOLDER / LATEST
    wait_until_shown(lambda: latest if _lacks(latest) else None, seconds, say)
    folder = latest_folder(run)
    if folder is not None and not folder.with_name(folder.name + DAMAGED).exists():
        wait_for_files(folder, seconds, say)


def wait_for_files(folder: Path, seconds: float, say: Callable[[str], None]) -> None:
    """Wait, as `wait_for_newest` does, until this machine sees all files of the checkpoint in `folder`."""
    wait_until_shown(lambda: _not_shown(folder), seconds, say)


def _lacks(latest: Path) -> bool:
    return not latest.is_file() and latest.parent.is_dir() and any(latest.parent.glob("step-*"))


def _not_shown(folder: Path) -> Path | None:
    """Return the first file of a checkpoint that is not there, or shorter than its marker says; None if there is none,
    or if the marker is damaged, which no waiting mends."""
    if size_shown(marker := folder / MARKER) < 1:
        return marker
    try:
        files = open_checkpoint(folder).files
    except Damaged:
        return None
    return next((path for f in files if size_shown(path := folder / f["file"]) < f["bytes"]), None)
