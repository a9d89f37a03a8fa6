"""Define the verb that draws a W&B dashboard: dashboard."""

import json
from pathlib import Path
from typing import Annotated

import typer

from launch.app import app, say


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
