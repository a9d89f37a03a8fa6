"""Define the verb that compares arms: study."""

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from data_pipeline.errors import EXIT_STOPPED, UserError
from launch import completion
from launch.app import app, say
from launch.studies import study_names


def _complete_studies(incomplete: str) -> list[tuple[str, str]]:
    """Complete shipped studies."""
    names = [name.replace("_", "-") for name in study_names()]
    return [(name, "a shipped study") for name in names if name.startswith(incomplete)]


def _list_studies(wanted: bool) -> None:
    if not wanted:
        return
    from launch.studies.read import read_design
    from pretrain.studies.design import Changes

    for name in study_names():
        design = read_design(name, Changes())
        say(f"{name.replace('_', '-')}: {design.title}")
        say(f"    arms: {', '.join(design.arms)}; {len(design.seeds)} seeds in its hour form")
    raise typer.Exit


@app.command()
def study(
    study: Annotated[
        str,
        typer.Argument(
            metavar="STUDY",
            help=f"Shipped: {', '.join(name.replace('_', '-') for name in study_names())}; or a YAML path.",
            autocompletion=_complete_studies,
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Settings that all arms have in common; KEY=[A, B] in place of a grid; evaluate.TASK.KEY=VALUE:"
            " one of `maskmill evaluate --settings` for a task.",
        ),
    ] = None,
    form: Annotated[str, typer.Option(help="hour: the central arms on two cores; long: all of it.")] = "hour",
    seeds: Annotated[int, typer.Option(min=0, max=10_000, help="Seeds of each arm; 0: the form's.")] = 0,
    arms: Annotated[str, typer.Option(help="Only these arms, as A,B.")] = "",
    out: Annotated[Path | None, typer.Option(help="Folder of the study; default: runs/study-STUDY.")] = None,
    data: Annotated[Path | None, typer.Option(help="The files of tasks: a folder for each of them.")] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            help="In place of the shipped text: a folder of files or folders named by their languages."
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            help="Score this run or Hugging Face folder in place of training; for arms that train alike."
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time, each on its share of the cores.")] = 1,
    share: Annotated[
        str,
        typer.Option(
            help="Do only a part of the runs, as 3/16, of a study that --prepare has prepared; the same command"
            " without it writes the results. slurm/study.sbatch does so."
        ),
    ] = "0/1",
    prepare: Annotated[
        bool,
        typer.Option("--prepare", help="Prepare the text, check what must be equal in all arms, and stop."),
    ] = False,
    draw: Annotated[
        bool,
        typer.Option("--draw", help="Only write table, picture and page again, of what has been measured."),
    ] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Say what it takes on GPUs, and stop: see --gpu.")
    ] = False,
    gpu: Annotated[
        str,
        typer.Option(
            help="With --plan: the GPU, as `maskmill plan` has it.", autocompletion=completion.gpu_names
        ),
    ] = "h100",
    gpus: Annotated[int, typer.Option(min=1, help="With --plan: GPUs of one run.")] = 1,
    price_per_hour: Annotated[
        float, typer.Option(min=0, help="With --plan: price of one GPU for an hour, in any currency.")
    ] = 0.0,
    list_: Annotated[
        bool, typer.Option("--list", help="Show the studies.", is_eager=True, callback=_list_studies)
    ] = False,
) -> None:
    """Compare arms: train each with several seeds, score it, test the differences; a table, a picture and a page.

    The folder of the study holds README.md, table.md, picture.svg and result.json. What is measured is not measured
    again: the same command after an interruption, or with more --seeds, does the rest.

    \b
    Example:
        maskmill study --list
        maskmill study plateau --jobs 2
        maskmill study objectives --form long --plan --gpu h100 --price-per-hour 2.5
        maskmill study my_study.yaml train.steps=1000"""
    from launch.studies.read import read_design, read_settings, source_settings
    from pretrain.studies.design import Changes, require_given

    chosen = tuple(name.strip() for name in arms.split(",") if name.strip())
    given = (source_settings(source) if source else {}) | read_settings(overrides or [])
    design = read_design(study, Changes(form, seeds, chosen, given))
    require_given(design)
    from data_pipeline.stages.executors import Share
    from launch.studies.budget import plan_lines
    from launch.studies.read import Place, Stopped, check_model
    from launch.studies.run import Study
    from pretrain.preflight.gpus import gpu_named
    from pretrain.preflight.step_time import Cluster
    from pretrain.studies import compare
    from pretrain.tasks import metrics

    part = Share.parsed(share)
    for path, option in ((data, "--data"), (model, "--model")):
        if path is not None and not path.is_dir():
            raise UserError("no such folder", where=f"{option} {path}")
    folder = (out or Path("runs") / f"study-{design.name.replace('_', '-')}").resolve()
    place = Place(folder, data, model, max(1, len(os.sched_getaffinity(0)) // jobs))
    check_model(design, place)
    if plan:
        for line in plan_lines(design, place, Cluster(1, gpus, gpu_named(gpu)), price_per_hour):
            say(line)
        return
    compare.require()
    for scoring in design.evaluate:
        metrics.require(scoring.task)  # now, not when its models are trained
    work = Study(design, place, shlex.join(["maskmill", *sys.argv[1:]]), say)
    try:
        if not draw and share == "0/1":
            work.prepare()
        if not draw and not prepare:
            work.run(jobs, part)
        if draw:
            work.redraw()
    except Stopped as stopped:
        say(f"{stopped} stopped; the same command continues")
        raise SystemExit(EXIT_STOPPED) from None
    if not prepare and share == "0/1":
        say((folder / "table.md").read_text("utf-8"))
        say(f"page: {folder / 'README.md'}")
