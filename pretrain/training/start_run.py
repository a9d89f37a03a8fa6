"""Open the folder of a recipe's run, new or existing, so that one process holds it and all ranks see it."""

from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from pretrain.checkpoint.mirror import bring_back
from pretrain.checkpoint.retention import drop_leftovers
from pretrain.checkpoint.store import checkpoints, wait_for_newest
from pretrain.config.settings import RunConfig
from pretrain.distributed.world import World, raise_on_all_ranks
from pretrain.preflight.check_run import Plan, run_identity
from pretrain.run.files import folder_wait
from pretrain.training.claim_folder import check_folder, lock, open_run, seen_by_all
from pretrain.training.initial_weights.check_source import check_starting_weights


def open_on_all_ranks(
    config: RunConfig, plans: list[Plan], world: World, console: Console
) -> tuple[dict[str, Any], Any]:
    """Open the run folder on the first rank; return its contents and lock. Its errors are raised on all ranks."""

    folder = Path(config.run.dir)
    say = partial(console.print, soft_wrap=True, markup=False)

    def opened() -> tuple[dict[str, Any], Any]:
        if world.rank != 0:
            return {}, None
        check_folder(config, plans, say)
        held = lock(folder)
        try:
            wait_for_newest(folder, folder_wait(config.run), say)  # before it is taken for a leftover
            drop_leftovers(folder)  # before free disk space is checked
            if config.checkpoint.mirror and (line := bring_back(config, run_identity(plans))):
                say(line)
            if not checkpoints(folder):
                check_starting_weights(config, plans[0])  # before a model is built
            return open_run(config, plans), held
        except BaseException:
            held.close()
            raise

    about, held = raise_on_all_ranks(world, opened)
    about = world.broadcast(about)
    if not about["finished"]:
        raise_on_all_ranks(world, lambda: seen_by_all(folder, about, world, folder_wait(config.run)))
    return about, held
