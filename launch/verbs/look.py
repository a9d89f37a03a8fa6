"""Define the verbs that show or send what is there: dashboard, doctor, inspect, report, sync, settings, status."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from data_pipeline.errors import EXIT_USER_ERROR, UserError
from launch import completion
from launch.app import Overrides, Run, app, console, errors, run_folder, run_folder_of, say, say_json
from launch.progress import waiting


@app.command()
def dashboard(
    source: Annotated[
        str, typer.Argument(metavar="PROJECT|RUN", help="A run folder, PROJECT or ENTITY/PROJECT on W&B.")
    ],
    entity: Annotated[
        str, typer.Option(help="User or team; default: WANDB_ENTITY, or whoever the key is of.")
    ] = "",
    to_file: Annotated[
        str, typer.Option("--json", metavar="FILE", help="Write the spec there, without a network.")
    ] = "",
    dry_run: Annotated[bool, typer.Option(help="Only list the panels and their metrics.")] = False,
) -> None:
    """Make a W&B workspace and a report: what a project's trainings, or this one, learn, how fast, how soundly.

    Each call makes new ones; the old ones stay until you delete them. Needs `pip install 'maskmill[dashboard]'`.

    \b
    Example:
        maskmill dashboard runs/base
        maskmill dashboard my-team/maskmill --json dashboard.json"""
    from pretrain.monitoring.wandb_dashboard import as_values, create, sections, target_of

    target = target_of(source, entity)
    if dry_run:
        for section in sections(target.objective, target.optimizer):
            say(section.name)
            for panel in section.panels:
                say(f"    {panel.title}: {', '.join(panel.keys) or panel.pattern}")
    if to_file:
        Path(to_file).write_text(json.dumps(as_values(target), indent=1) + "\n", encoding="utf-8")
        say(f"spec of workspace and report: {to_file}")
    if not dry_run and not to_file:
        for name, address in create(target).items():
            say(f"{name}: {address}")


MARKS = {"ok": "[green]ok     [/green]", "note": "[yellow]note   [/yellow]", "missing": "[red]missing[/red]"}


@app.command()
def doctor(
    folder: Annotated[Path, typer.Argument(metavar="[PATH]", help="Where shards and runs are to be.")] = Path(
        "."
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Say what this machine has, what will work on it, and what to install. Exit code 2 where nothing can be trained.

    Looks at processor, memory, GPUs and their links, torch, compilers, Slurm, limits; measures the disk at PATH for a
    second. Needs no network, and says of keys only whether they are there.

    \b
    Example:
        maskmill doctor
        maskmill doctor /scratch/runs --json"""
    from launch.doctor import MISSING, examine

    with errors.status("looking at this machine") as shown:
        found = examine(folder, lambda what: shown.update(f"looking at {what}"))
    if as_json:
        say_json([finding._asdict() for finding in found])
    else:
        for finding in found:
            remedy = f"\n          do: {escape(finding.remedy)}" if finding.remedy else ""
            line = f"{MARKS[finding.level]} {finding.subject}: {escape(finding.text)}{remedy}"
            console.print(line, soft_wrap=True)
    if any(finding.essential and finding.level == MISSING for finding in found):
        raise SystemExit(EXIT_USER_ERROR)


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
    from launch.inspection import inspect_path
    from launch.recipe import load_config

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
            help="Only settings whose key, meaning, or name in another program contains this.",
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
        maskmill settings learning_rate
        maskmill settings optim. --recipe bert_base optim.lr=1e-3"""
    from launch.completion import manual

    if "=" in contains:  # no WORD, so that the first KEY=VALUE took its place
        contains, overrides = "", [contains, *(overrides or [])]
    if overrides and not recipe:
        raise UserError(f"cannot apply {overrides[0]!r}", expected="--recipe RECIPE beside it")
    config = None
    if recipe:
        from launch.recipe import load_config

        config = load_config(recipe, overrides or [])
    from pretrain.config.aliases import known_as

    word = contains.lower()
    for key, value, meaning in manual(config):
        # a group, such as `train.`, stands in many meanings
        texts = [key] if "." in word else [key, meaning.lower(), *known_as(key)]
        if any(word in text for text in texts):
            line = f"[bold]{key}[/bold] = {escape(value)}\n    {escape(meaning)}"
            console.print(line, soft_wrap=bool(recipe))


@app.command()
def status(
    source: Run,
    overrides: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Say how a run is: step, loss, speed, time left, newest checkpoint, restarts, health, and what to do next.

    From its files alone, so from any machine that sees the folder, and while it is in progress.

    \b
    Example:
        maskmill status runs/base
        watch -n 10 maskmill status runs/base"""
    from pretrain.report.status import command_again, in_words, read_status, what_next, what_to_do

    found = read_status(run_folder_of(source, overrides))
    again = command_again(found, source, overrides or [])
    if as_json:
        facts = asdict(found) | {
            "folder": str(found.folder),
            "next": what_next(found, again),
            "to_do": what_to_do(found),
        }
        say_json(facts, sort_keys=True)
    else:
        say(in_words(found, again))
