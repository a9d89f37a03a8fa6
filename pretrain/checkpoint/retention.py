"""Choose which checkpoints to keep by their steps and held-out losses, remove the others, and clean up.

What killed saves and deletions left is removed or finished. A damaged checkpoint is renamed, and removed once the run
has passed its step again.
"""

import math
import secrets
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pretrain.checkpoint.store import (
    DAMAGED,
    PARTIAL,
    Damaged,
    checkpoints,
    drop,
    latest_folder,
    open_checkpoint,
    step_of,
)
from pretrain.config.phases import phases_of
from pretrain.config.settings import RunConfig
from pretrain.run.files import CHECKPOINTS, MARKER


def kept(losses: Mapping[int, float | None], config: RunConfig) -> set[int]:
    """Choose the checkpoints to keep by checkpoint.keep, keep_every and keep_best. `losses`: held-out loss by step,
    None if not evaluated at that step. The newest is always kept."""
    settings = config.checkpoint
    steps = sorted(losses)
    staying = set(steps[-settings.keep :])
    for phase in phases_of(config) if settings.keep_every else ():
        apart = settings.keep_every * phase.config.train.checkpoint_every
        first, last = phase.first or 0, math.inf if phase.last is None else phase.last  # where unknown: any
        staying |= {step for step in steps if apart and first < step <= last and step % apart == 0}
    known = {step: loss for step, loss in losses.items() if loss is not None}
    if settings.keep_best and known:
        # of equal ones, the later: it has trained longer
        staying.add(min(known, key=lambda step: (known[step], -step)))
    return staying


def drop_leftovers(run: Path) -> None:
    """Clean up after killed saves and deletions: rename a whole checkpoint that lacks only its final name; delete
    other folders without a marker or with a temporary name. What `latest` names is left alone: a network folder may
    not show its marker yet, and no save and no deletion leaves it without one for good."""
    newest = latest_folder(run)
    for folder in sorted((run / CHECKPOINTS).glob("step-*")):
        whole = (folder / MARKER).is_file()
        if folder.name.endswith(PARTIAL):
            final = folder.with_name(f"step-{step_of(folder):08d}")
            if whole and step_of(folder) >= 0 and not (final / MARKER).is_file():
                _take_the_place_of(final, folder)
            else:
                _delete_leftover(folder)
        elif not whole and folder != newest:
            shutil.rmtree(folder, ignore_errors=True)


def _delete_leftover(folder: Path) -> None:
    """Delete what a killed save left, under another name. A client of a network folder may still resolve the name of an
    old listing, to the checkpoint that the folder has become; its server refuses to rename what has no such name."""
    aside = folder.with_name(f"step-{max(0, step_of(folder)):08d}.{secrets.token_hex(4)}{PARTIAL}")
    with suppress(FileNotFoundError):
        shutil.rmtree(folder.rename(aside), ignore_errors=True)


def _take_the_place_of(final: Path, whole: Path) -> None:
    """Give a whole checkpoint its final name, in the place of one without a marker. That one is deleted last: where
    `whole` is but an old listing of it, whose marker is not shown yet, it gets its name back."""
    aside = final.with_name(f"{final.name}.{secrets.token_hex(4)}{PARTIAL}")
    if final.is_dir():
        final.rename(aside)
    try:
        whole.rename(final)
    except FileNotFoundError:
        if aside.is_dir():
            aside.rename(final)
        return
    shutil.rmtree(aside, ignore_errors=True)


def set_aside(folder: Path) -> Path:
    """Rename a damaged checkpoint, so that it is no longer used but can still be inspected."""
    aside = folder.with_name(folder.name + DAMAGED)
    shutil.rmtree(aside, ignore_errors=True)
    folder.rename(aside)
    return aside


def drop_old(config: RunConfig) -> None:
    """Delete the checkpoints that retention drops, and damaged ones that the run has passed again."""
    run = Path(config.run.dir)
    folders = {step_of(folder): folder for folder in checkpoints(run)}
    staying = kept({step: held_out_loss(folder) for step, folder in folders.items()}, config)
    damaged = [
        f for f in (run / CHECKPOINTS).glob(f"step-*{DAMAGED}") if 0 <= step_of(f) <= max(staying, default=-1)
    ]
    for folder in [*(folder for step, folder in folders.items() if step not in staying), *damaged]:
        drop(folder)


def held_out_loss(folder: Path) -> float | None:
    """Return the held-out loss at a checkpoint's step; None if the model was not evaluated there."""
    try:
        return open_checkpoint(folder).state.get("held_out_loss")
    except Damaged:
        return None
