"""Define the verbs that look at what is there: inspect, report, sync, settings."""

from typing import Annotated

import typer
from rich.markup import escape

from data_pipeline.errors import UserError
from launch.app import Overrides, Run, app, console, errors, run_folder, say
from launch.progress import waiting
from launch.settings import completion


@app.command()
def inspect(
    path: Annotated[str, typer.Argument(metavar="PATH", help="A folder, or the URI of shards.")],
    overrides: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
    examples: Annotated[
        str, typer.Option(help="Print so many examples, or `all`, one a line with --json.")
    ] = "",
    split: Annotated[str, typer.Option(help="Which examples: train or held_out.")] = "train",
    batch: Annotated[int, typer.Option(help="Examples of a batch whose padding is counted.")] = 32,
    recipe: Annotated[
        str, typer.Option(help="A recipe, changed by KEY=VALUE: how often it reads the shards.")
    ] = "",
) -> None:
    """Say what is in a folder of shards, a run, a checkpoint or an exported model, and whether all hashes hold.

    Of shards every example is looked at. What is odd about the data is said with what to do, and the exit code
    is 0; files that are missing or changed end with exit code 2.

    \b
    Example:
        maskmill inspect shards/ --batch 64 --recipe bert_base train.steps=100000
        maskmill inspect shards/ --examples all --json"""
    if overrides and not recipe:
        raise UserError(f"cannot apply {overrides[0]!r}", where=path, expected="--recipe RECIPE beside it")
    from launch.inspecting import inspect_path
    from launch.settings.recipe import load_config

    config = load_config(recipe, overrides or []) if recipe else None
    inspect_path(path, console, as_json=as_json, examples=examples, split=split, batch=batch, config=config)


@app.command()
def report(source: Run) -> None:
    """Draw report.html from a run folder, whatever its state: one page that needs nothing but a browser. It has the
    curves, trust ratios, speed, data, attempts and checkpoints of the run, what to look at, and how to run it again.

    \b
    Example:
        maskmill report runs/base"""
    folder = run_folder(source, None)
    with waiting(errors, "drawing the report"):
        from pretrain.report.page import render

        page = render(folder)
    say(f"report: {page}")


@app.command()
def sync(source: Run) -> None:
    """Send a run that W&B has not seen whole: every step once, in order, whatever the number of its attempts.

    \b
    Example:
        maskmill sync runs/base"""
    folder = run_folder(source, None)
    with waiting(errors, "sending to W&B"):
        from pretrain.monitoring.tracker import sync_run

        count = sync_run(folder)
    say(f"sent {count:,} lines to W&B")


@app.command()
def settings(
    contains: Annotated[
        str,
        typer.Argument(
            metavar="[WORD]",
            help="Only keys that contain this.",
            autocompletion=completion.words_of_settings,
        ),
    ] = "",
    overrides: Overrides = None,
    recipe: Annotated[
        str, typer.Option(help="Values of this recipe, changed by KEY=VALUE, instead of the defaults.")
    ] = "",
) -> None:
    """List every setting: key, default, meaning; with --recipe, its value in a recipe instead of the default.

    \b
    Example:
        maskmill settings train.
        maskmill settings optim. --recipe bert_base optim.lr=1e-3"""
    from launch.settings.manual import manual

    if "=" in contains:  # no WORD, so that the first KEY=VALUE took its place
        contains, overrides = "", [contains, *(overrides or [])]
    if overrides and not recipe:
        raise UserError(f"cannot apply {overrides[0]!r}", expected="--recipe RECIPE beside it")
    config = None
    if recipe:
        from launch.settings.recipe import load_config

        config = load_config(recipe, overrides or [])
    for key, value, meaning in manual(config):
        if contains in key:
            line = f"[bold]{key}[/bold] = {escape(value)}\n    {escape(meaning)}"
            console.print(line, soft_wrap=bool(recipe))
