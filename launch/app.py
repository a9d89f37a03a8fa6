"""The application that the verbs register with, what their arguments mean, and how a line is said."""

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from data_pipeline.errors import UserError
from launch.recipe import load_config, recipe_names

HELP = """Pretrain BERT-family encoders: raw text in, a Hugging Face model out.

A run is described by a RECIPE (a shipped name or a YAML path) and key=value pairs that change it:

\b
    maskmill vocab demo                       learn a vocabulary from the recipe's text
    maskmill prepare demo                     text -> shards
    maskmill train demo train.steps=500       shards -> checkpoints in run.dir
    maskmill export runs/demo                 newest checkpoint -> runs/demo/export, a Hugging Face model

`maskmill settings` lists every key with its meaning and default."""

app = typer.Typer(
    help=HELP,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
console = Console(highlight=False)

Recipe = Annotated[
    str, typer.Argument(metavar="RECIPE", help=f"Shipped: {', '.join(recipe_names())}; or a YAML path.")
]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings that differ from the recipe's.")
]
Folder = Annotated[Path, typer.Argument(metavar="PATH")]


def run_folder(source: str, overrides: list[str] | None) -> Path:
    """The folder that `source` names, or the run.dir of the recipe that it names."""
    if Path(source).is_dir():
        if overrides:
            raise UserError(
                f"cannot apply {overrides[0]!r} to a folder", where=source, expected="a recipe before it"
            )
        return Path(source)
    if "/" in source and not source.endswith((".yaml", ".yml")):
        raise UserError("no such folder", where=source)
    config = load_config(source, overrides or [])
    if not Path(config.run.dir).is_dir():
        raise UserError(
            "the recipe has not been trained yet", where=config.run.dir, remedy=f"maskmill train {source}"
        )
    return Path(config.run.dir)


def first_rank() -> bool:
    """Whether this process is the one that speaks: the first rank, or none."""
    return os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0"


def say(text: str) -> None:
    """Prints a line as it is."""
    console.print(escape(text), soft_wrap=True)
