"""Define the verb that submits a recipe to a cluster: slurm."""

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from launch import completion
from launch.app import Overrides, Recipe, app, errors, say, say_json, say_plainly
from launch.progress import waiting


@app.command()
def slurm(
    recipe: Recipe,
    overrides: Overrides = None,
    nodes: Annotated[int, typer.Option(help="Nodes of the training.", min=1)] = 1,
    gpus_per_node: Annotated[
        int, typer.Option(help="GPUs of each, with a rank for each; 0: on CPUs.", min=0)
    ] = 8,
    ranks_per_node: Annotated[int, typer.Option(help="Without GPUs: ranks of each node; 0: one.", min=0)] = 0,
    tasks: Annotated[
        int,
        typer.Option(
            help="Tasks of each array of the preparation; 0: 16, or one job without arrays for up to 4 GiB of text.",
            min=0,
        ),
    ] = 0,
    cpus: Annotated[
        int,
        typer.Option(
            help="Cores of such a task, of jobs of one process, and of a rank without a GPU.", min=1
        ),
    ] = 4,
    stages: Annotated[
        str,
        typer.Option(
            help="Which stages, apart by commas; what is done already is left out.",
            autocompletion=completion.stages,
        ),
    ] = "vocab,prepare,train,export",
    sbatch: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OPTION",
            help="One more option of sbatch, as --account=lab; of one stage or job: train:--time=48:00:00.",
        ),
    ] = None,
    submit: Annotated[
        bool, typer.Option("--submit", help="Submit the jobs, instead of printing them.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --submit: machine-readable.")] = False,
) -> None:
    """Print, or submit, the batch jobs that take a recipe from text to a model, each behind the one before.

    Without --submit a script is printed that submits them: for reading, changing and running. Logs go to the folder
    logs in run.dir, those of the training by rank. What is there already (vocabulary, shards, a finished run) is not
    redone, so after a failure the same command does the rest.

    \b
    Example:
        maskmill slurm bert_base data.sources=/data/text --nodes 4 --gpus-per-node 8
        maskmill slurm bert_base --nodes 4 --sbatch=--account=lab --sbatch=train:--time=48:00:00 --submit"""
    from launch.jobs import Request, Size
    from launch.recipe import load_config
    from launch.slurm import Chain, as_script, chain, command_for_jobs, jobs_environment, with_options
    from launch.slurm import submit as submit_jobs

    config = load_config(recipe, overrides or [])
    size = Size(nodes, gpus_per_node, ranks_per_node, tasks, cpus)
    with waiting(errors, "looking at what is there"):
        found = chain(Request(config, recipe, overrides or [], size), [s for s in stages.split(",") if s])
    found = Chain(with_options(found.jobs, sbatch or []), found.skipped)
    if not submit:
        say_plainly(as_script(found, command_for_jobs(os.environ)), end="")
        return
    run = Path(config.run.dir)
    submitted = submit_jobs(found, jobs_environment(), run, shlex.join(["maskmill", *sys.argv[1:]]))
    if as_json:
        say_json({"jobs": submitted, "skipped": found.skipped})
        return
    for stage, words in found.skipped.items():
        say(f"{stage}: nothing to do, {words}")
    for job in submitted:
        after = f", after {job['after']}" if job["after"] else ""
        say(f"{job['name']}: job {job['job']}{after}; log {job['log']}")
    if submitted:
        say(
            f"how it is going: maskmill status {run}; end it: scancel {' '.join(j['job'] for j in submitted)}"
        )
