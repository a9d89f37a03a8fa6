"""Find the newest whole checkpoint of a run folder and its mirror; damaged ones are set aside with a warning."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from data_pipeline.errors import UserError
from pretrain.checkpoint.cleanup import set_aside
from pretrain.checkpoint.late_checkpoint import wait_for_files
from pretrain.checkpoint.mirror import Mirror
from pretrain.checkpoint.store import DAMAGED, Checkpoint, all_damaged, newest_checkpoint, newest_whole
from pretrain.config.settings import RunConfig
from pretrain.distributed.world import World
from pretrain.run.files import folder_wait


def recovered(
    config: RunConfig, world: World, say: Callable[[str], None], *, waits: bool = True
) -> Checkpoint | None:
    """Find the checkpoint to resume from; None for a new run. All ranks call this. If the mirror has a newer whole
    copy than the run folder, because the newest here is damaged or missing, it is fetched, verified and used. `say`
    gets a line, on the first rank, for each checkpoint fetched or set aside and for an unreachable mirror. `waits`: for
    files that are shown late, before they count as damage.

    Raises UserError if checkpoints exist but none is whole, here or in the mirror, and if none is whole here and
    the mirror is unreadable."""
    folder = Path(config.run.dir)
    wait = partial(wait_for_files, seconds=folder_wait(config.run) if waits else 0.0, say=say)
    checkpoint, damaged = newest_whole(folder, world, wait)

    def mended() -> bool:
        if world.rank != 0:
            return False
        step = None
        if config.checkpoint.mirror:
            try:
                step = Mirror(config).fetch_newest(
                    folder, above=-1 if checkpoint is None else checkpoint.step
                )
            except UserError as error:
                if checkpoint is None:
                    raise
                say(
                    f"maskmill: WARNING: {error}; resuming from {checkpoint.folder.name}, which is whole here"
                )
        if step is None and checkpoint is None and damaged:
            raise all_damaged(folder, damaged)
        if step is not None:
            say(
                f"fetched the checkpoint of step {step:,}, which is not whole here, from {Mirror(config).uri}"
            )
        resumed = f"step-{step:08d}" if step is not None else checkpoint.folder.name if checkpoint else ""
        for path, found in damaged:
            if path.name == resumed:  # set aside to make room for its copy
                fate = f"set aside as {path.name}{DAMAGED}, its copy in the mirror is whole"
            else:
                fate = f"set aside as {set_aside(path).name}, falling back to {resumed}"
            say(f"{path.name} is damaged ({found}): {fate}")
        return step is not None

    return newest_checkpoint(folder, world, wait) if any(world.together(mended)) else checkpoint
