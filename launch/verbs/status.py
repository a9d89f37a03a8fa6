"""Define the verb that tells how a run is: status."""

from dataclasses import asdict
from typing import Annotated

import typer

from launch.app import Overrides, Run, app, run_folder_of, say, say_json


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
