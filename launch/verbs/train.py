"""Define the verbs of training: train, plan."""

import shlex
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from data_pipeline.errors import UserError
from launch import completion
from launch.app import Overrides, Recipe, app, console, errors, say, say_json
from launch.progress import waiting
from pretrain.distributed.launch_env import first_rank, is_launched

if TYPE_CHECKING:
    from pretrain.config.settings import RunConfig

USUAL_GPUS = 8
"""Of a machine, where nothing says otherwise."""


def list_recipes(wanted: bool) -> None:
    """Prints every objective with its shipped recipes, and ends."""
    if not wanted:
        return
    from launch.recipe import recipe_list

    for listed in recipe_list():
        say(f"{listed.objective}: {listed.what}")
        width = max((len(name) for name, _ in listed.recipes), default=0)
        for name, line in listed.recipes:
            say(f"    {name:{width}}  {line}")
    raise typer.Exit


@app.command()
def train(
    recipe: Recipe,
    overrides: Overrides = None,
    list_: Annotated[
        bool,
        typer.Option("--list", help="Show objectives and recipes.", is_eager=True, callback=list_recipes),
    ] = False,
) -> None:
    """Train on prepared shards; checkpoints, metrics.jsonl and report.html go to the folder run.dir.

    Starts run.ranks processes on this machine, or joins those that torchrun, deepspeed or srun started. After a
    crash they are started again, run.restarts times. SIGTERM, SIGUSR1 and Ctrl-C save and end with exit code 3
    (run.stopped_exit_code).
    The same command again resumes from the newest checkpoint; a finished run says so.

    \b
    Example:
        maskmill train --list
        maskmill train bert_base run.dir=runs/base run.ranks=8"""
    from launch.recipe import load_config

    config = load_config(recipe, overrides or [])
    if code := start_training(config, recipe, overrides or [], sys.argv[1:]):
        raise SystemExit(code)


def start_training(config: "RunConfig", recipe: str, overrides: list[str], arguments: list[str]) -> int:
    """Check a run, start its ranks with `maskmill ARGUMENTS` and watch over them; in a process that a launcher has
    started, train as one of the ranks. Return the exit code: 0 if the run is finished, or was before. Raises
    UserError for a mistake in settings, shards or run folder."""
    from launch.recipe import names_sources

    with waiting(errors, "checking settings and shards"):
        if names_sources(recipe, overrides):
            from pretrain.preflight.check_run import check_sources

            check_sources(config)
        launched = is_launched()
        if not launched:
            from pretrain.training.before_ranks import check_start

            nothing_to_do = check_start(config, config.run.ranks)  # leaves no folder
    if not launched:
        if nothing_to_do:
            say(nothing_to_do)
            return 0
        from launch.ranks import ended_with, start_ranks
        from pretrain.run.files import LOGS

        logs, run = Path(config.run.dir) / LOGS, config.run
        code = start_ranks(arguments, run.ranks, logs, run.restarts, run.restart_delay)
        return ended_with(code, run.stopped_exit_code)
    from pretrain.distributed.watchdog import Watchdog

    watchdog = Watchdog(config.run)
    watchdog.stage("importing torch")
    with waiting(errors, "starting") if first_rank() else nullcontext():
        from pretrain.train import train as train_run

    train_run(config, console, command=shlex.join(["maskmill", *arguments]), watchdog=watchdog)
    return 0


@app.command()
def plan(
    recipe: Recipe,
    overrides: Overrides = None,
    nodes: Annotated[int, typer.Option(help="Machines.", min=1)] = 1,
    gpus_per_node: Annotated[
        int | None,
        typer.Option(help="GPUs of each machine; unless stated, run.ranks where it is set, else 8.", min=1),
    ] = None,
    gpu: Annotated[
        str,
        typer.Option(
            help="v100, a100, a100-80, h100, h200, b200, l40s, a10 or rtx4090, in any case.",
            autocompletion=completion.gpu_names,
        ),
    ] = "h100",
    network: Annotated[
        float,
        typer.Option(help="Gbit/s a GPU has to other machines; 0: what such machines usually have.", min=0),
    ] = 0.0,
    utilisation: Annotated[
        float,
        typer.Option(
            help="Share of the GPU's peak that the arithmetic reaches, the mfu of a measured run; 0: what was measured"
            " on such a GPU, else 0.4.",
            min=0,
            max=1,
        ),
    ] = 0.0,
    price_per_hour: Annotated[
        float, typer.Option(help="Price of one GPU for an hour, in any currency, for the cost.", min=0)
    ] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Say what a run needs and costs before anyone pays: memory, time, epochs, and what does not add up.

    \b
    Example:
        maskmill plan bert_large --nodes 8 --gpu H100 --price-per-hour 2.5"""
    from launch.recipe import given_settings, load_config

    config = load_config(recipe, overrides or [])
    ranks = config.run.ranks if "run.ranks" in given_settings(recipe, overrides or []) else 0
    gpus = gpus_of_a_node(ranks, overrides or [], nodes, gpus_per_node)
    with waiting(errors, "planning"):
        from pretrain.preflight.forecast import forecast_phases
        from pretrain.preflight.gpus import gpu_named
        from pretrain.preflight.show import phases_as_values, show_phases
        from pretrain.preflight.step_time import Cluster

        found = forecast_phases(config, Cluster(nodes, gpus, gpu_named(gpu, network)), utilisation)
    if as_json:
        say_json(phases_as_values(found, price_per_hour))
    else:
        show_phases(found, config.zero.stage, console, price_per_hour)


def gpus_of_a_node(ranks: int, overrides: list[str], nodes: int, asked: int | None) -> int:
    """Return the GPUs of each of `nodes` machines to plan for: those that are asked for, else what run.ranks comes to,
    else 8. `ranks`: run.ranks, over all machines; 0: nobody has set it. A recipe's counts for one machine alone: on
    several, what starts the ranks decides. Raises UserError where the command line contradicts itself."""
    stated = [override for override in overrides if override.startswith("run.ranks=")]
    if stated and (ranks % nodes or asked not in (None, ranks // nodes)):
        size = f"--nodes {nodes}" + (f" --gpus-per-node {asked}" if asked else "")
        raise UserError(
            f"{stated[-1]} contradicts {size}",
            where="command line",
            expected="a rank for each GPU",
            remedy="leave out run.ranks",
        )
    if asked:
        return asked
    return ranks // nodes if stated or (ranks and nodes == 1) else USUAL_GPUS
