"""Open the folder of a recipe's run, new or existing, so that one process holds it and all ranks see it."""

from pathlib import Path
from typing import Any

from rich.console import Console

from pretrain.checkpoint.cleanup import drop_leftovers
from pretrain.checkpoint.mirror import bring_back
from pretrain.checkpoint.store import checkpoints
from pretrain.config.settings import RunConfig
from pretrain.distributed.world import World, raise_on_all_ranks
from pretrain.preflight.check_run import Plan
from pretrain.training.claim_folder import check_folder, lock, open_run, run_identity, seen_by_all
from pretrain.training.initial_weights.check_source import check_starting_weights


def open_on_all_ranks(
    config: RunConfig, plans: list[Plan], world: World, console: Console
) -> tuple[dict[str, Any], Any]:
    """Open the run folder on the first rank; return its contents and lock. Its errors are raised on all ranks."""

    folder = Path(config.run.dir)

    def opened() -> tuple[dict[str, Any], Any]:
        if world.rank != 0:
            return {}, None
        check_folder(config, plans)
        held = lock(folder)
        try:
            drop_leftovers(folder)  # before free disk space is checked
            if config.checkpoint.mirror and (line := bring_back(config, run_identity(plans))):
                console.print(line, soft_wrap=True, markup=False)
            if not checkpoints(folder):
                check_starting_weights(config, plans[0])  # before a model is built
            return open_run(config, plans), held
        except BaseException:
            held.close()
            raise

    about, held = raise_on_all_ranks(world, opened)
    about = world.broadcast(about)
    if not about["finished"]:
        raise_on_all_ranks(world, lambda: seen_by_all(folder, about, world))
    return about, held
