"""Define the application that the verbs register with, what their arguments mean, and how a line is printed."""

import difflib
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.text import Text
from typer.core import TyperCommand

from data_pipeline.errors import UserError, printable, shown_json
from launch import completion
from launch.recipes import recipe_names

HELP = """Pretrain BERT-family encoders: raw text in, a Hugging Face model out.

A run is described by a RECIPE (a shipped name or a YAML path) and key=value pairs that change it:

\b
    maskmill vocab demo                       learn a vocabulary from the recipe's text
    maskmill prepare demo                     text -> shards
    maskmill train demo train.steps=500       shards -> checkpoints in run.dir
    maskmill export runs/demo                 newest checkpoint -> runs/demo/export, a Hugging Face model
    maskmill slurm demo --nodes 2             all of these as jobs of a Slurm cluster

`maskmill settings` lists every key with its meaning and default, `maskmill status RUN` says how a run is, and
`maskmill doctor` what this machine lacks."""

LARGEST_COUNT, LARGEST_FIGURE = 10**9, 1e15
"""Of options: seeds, nodes and examples; prices and rates."""


class Verb(TyperCommand):
    """A command whose numbers are checked before it runs, so that none overflows where it is used."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        """Run the verb. Raises UserError for a number that is too large, or none."""
        for name, value in ctx.params.items():
            most = LARGEST_COUNT if isinstance(value, int) else LARGEST_FIGURE
            if isinstance(value, int | float) and not abs(value) <= most:
                shown = (
                    f"{value:g}" if isinstance(value, float) else f"a number of {len(str(abs(value)))} digits"
                )
                raise UserError(
                    f"got {shown}", where=f"--{name.replace('_', '-')}", expected=f"at most {most:,.0f}"
                )
        return super().invoke(ctx)


class Verbs(typer.Typer):
    """The application, whose commands are Verbs."""

    def command(self, *names: Any, **options: Any) -> Any:
        """Register a verb."""
        return super().command(*names, **({"cls": Verb} | options))


app = Verbs(
    help=HELP,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class SafeConsole(Console):
    """A console on which nothing from outside moves the cursor, changes colours or talks to the terminal: control
    characters in what is shown are escaped. Those of rich itself are no text, and stay."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, emoji=False, **options)  # a path with `:x:` in it stays as it is

    def render_str(self, text: str, **options: Any) -> Text:
        """Escape before the text is laid out, so that tables keep their columns."""
        return super().render_str(printable(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Escape whatever else was put together, such as panels and progress bars."""
        for segment in super().render(renderable, options):
            shown = segment.text if segment.control else printable(segment.text)
            yield segment if shown == segment.text else Segment(shown, segment.style)


LEAST_ADDRESS_SPACE = 1_000_000_000
"""Bytes below which the verbs that make data do not start: with 600 MB the tokenizers library ended the process."""
console = SafeConsole()
errors = SafeConsole(stderr=True)
"""For progress beside what a verb says on its output."""

Recipe = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        help=f"Shipped: {', '.join(recipe_names())}; or a YAML path.",
        autocompletion=completion.recipes,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Settings that differ from the recipe's.",
        autocompletion=completion.settings,
    ),
]
Run = Annotated[
    str,
    typer.Argument(metavar="PATH", help="A run folder, or a recipe.", autocompletion=completion.recipes),
]
Folder = Annotated[Path, typer.Argument(metavar="PATH")]


def run_folder(source: str, overrides: list[str] | None) -> Path:
    """Return the folder that `source` names, or the run.dir of the recipe that it names. Raises UserError where it is
    missing."""
    folder = run_folder_of(source, overrides)
    if not folder.is_dir():
        raise UserError(
            "the recipe has not been trained yet", where=folder, remedy=f"maskmill train {source}"
        )
    return folder


def run_folder_of(source: str, overrides: list[str] | None) -> Path:
    """Return the same folder, for a recipe even if it is still missing."""
    if Path(source).is_dir():
        if overrides:
            raise UserError(
                f"cannot apply {overrides[0]!r} to a folder", where=source, expected="a recipe before it"
            )
        return Path(source)
    if not source.endswith((".yaml", ".yml")) and ("/" in source or source not in recipe_names()):
        raise no_such_run(source)
    from launch.recipe import load_config

    config = load_config(source, overrides or [])
    if not config.run.dir:
        raise UserError("is empty", where="run.dir", expected="the folder of the run")
    return Path(config.run.dir)


def no_such_folder(path: Path) -> UserError:
    """Return the error for a missing folder, with those beside it that have a similar name."""
    beside = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    near = [str(path.parent / name) for name in difflib.get_close_matches(path.name, beside, n=3)]
    return UserError(
        "no such folder", where=path, remedy=f"did you mean {' or '.join(near)}?" if near else ""
    )


def no_such_run(source: str) -> UserError:
    """Return the error for a missing run folder; a word without a slash might have been meant as a recipe."""
    error = no_such_folder(Path(source))
    if "/" in source:
        return UserError("no such run folder", where=source, remedy=error.remedy)
    near = difflib.get_close_matches(source, recipe_names(), n=3)
    return UserError(
        "no such run folder, and no recipe of that name",
        where=source,
        remedy=f"did you mean the recipe {' or '.join(near)}?" if near else error.remedy,
    )


def address_space() -> int:
    """Return the bytes of memory that `ulimit -v` allows this process; 0: any number."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return 0 if limit == resource.RLIM_INFINITY else limit


def check_address_space() -> None:
    """Raise UserError where `ulimit -v` allows so little that libraries end the process instead of raising an error."""
    if 0 < (limit := address_space()) < LEAST_ADDRESS_SPACE:
        raise UserError(
            f"allows {limit / 1e6:,.0f} MB",
            where="ulimit -v",
            expected=f"at least {LEAST_ADDRESS_SPACE / 1e6:,.0f} MB",
            remedy="ulimit -v unlimited",
        )


def say(text: str) -> None:
    """Print a line as it is, but for control characters."""
    console.print(escape(text), soft_wrap=True)


def say_plainly(text: str, end: str = "\n") -> None:
    """Print lines without rich, which other programs may read; control characters are escaped."""
    print(printable(text), end=end)


def say_json(values: Any, *, sort_keys: bool = False) -> None:
    """Print values as JSON."""
    print(shown_json(values, sort_keys))
