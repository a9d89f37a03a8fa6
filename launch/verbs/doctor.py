"""Define the verb that checks the machine: doctor."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from launch.app import app, console, errors, say_json

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
    from launch.doctor.examine import examine
    from launch.doctor.machine import MISSING

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
        raise SystemExit(2)
