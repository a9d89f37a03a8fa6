"""The `maskmill` command: each verb parses, builds, calls. Anything a person can put right is one line, exit 2."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from data_pipeline.errors import UserError
from launch.progress import stages
from launch.ranks import end_with_supervisor, start_ranks
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


@app.command()
def vocab(recipe: Recipe, overrides: Overrides = None) -> None:
    """Train a vocabulary on data.sources and write it into the folder data.vocab: WordPiece, or what
    vocabulary.kind says.

    \b
    Example:
        maskmill vocab bert_base data.sources=corpus/ data.vocab=vocab/ vocabulary.size=30522"""
    config = load_config(recipe, overrides or [])
    from data_pipeline.learning import learn_vocabulary

    vocabulary = learn_vocabulary(config.data, config.vocabulary, stages(console))
    say(f"vocabulary of {vocabulary.size:,} entries in {config.data.vocab}")


@app.command()
def prepare(
    recipe: Recipe,
    overrides: Overrides = None,
    stage: Annotated[
        str, typer.Option(help="Do this stage only: discover, read, plan, gather, write or finish.")
    ] = "",
    share: Annotated[
        str, typer.Option(help="With --stage, of its tasks only these: 3/16 does tasks 3, 19, 35, ...")
    ] = "0/1",
) -> None:
    """Turn data.sources into pre-masked shards and index.json in the folder data.out; of a recipe with phases, those
    of each.

    The bytes depend on the text, the settings and the seed alone. A killed run goes on where it was.
    Without --stage one process does it all; with it, many processes on many machines can, in a folder that all see:
    each stage in as many shares as you like, one stage after the other. slurm/prepare.sbatch does so.

    \b
    Example:
        maskmill prepare bert_base data.sources=corpus/*.jsonl.zst data.vocab=vocab/ data.out=shards/"""
    config = load_config(recipe, overrides or [])
    from data_pipeline.executors import Share
    from data_pipeline.prepare import prepare as run
    from data_pipeline.prepare import prepare_share
    from pretrain.phases import data_of_phases

    if share != "0/1" and not stage:
        raise UserError("is a part of a stage", where="--share", remedy="say which: --stage read")
    for data in data_of_phases(config):
        if stage:
            say(prepare_share(data, stages(console), stage, Share.parsed(share)))
            continue
        index, fresh = run(data, stages(console))
        train = index.splits["train"]
        say(
            f"{'prepared' if fresh else 'already prepared:'} {train.examples:,} examples, {train.tokens:,} tokens, "
            f"{len(train.shards)} shards in {data.out}"
        )


@app.command()
def train(recipe: Recipe, overrides: Overrides = None) -> None:
    """Train on prepared shards; checkpoints, metrics.jsonl and report.html go to the folder run.dir.

    Starts run.ranks processes on this machine, or joins those that torchrun, deepspeed or srun started. After a
    crash they are started again, run.restarts times. SIGTERM, SIGUSR1 and Ctrl-C save and end with exit code 3.
    The same command again goes on from the newest checkpoint; a finished run says so.

    \b
    Example:
        maskmill train bert_base run.dir=runs/base run.ranks=8"""
    from pretrain.world import is_launched

    config = load_config(recipe, overrides or [])
    if not is_launched():
        from pretrain.preflight import check_run
        from pretrain.run_folder import check_folder

        # here, so that what is wrong is said once, in seconds, and leaves no folder
        check_folder(config, check_run(config, config.run.ranks))
        logs, run = Path(config.run.dir) / "logs", config.run
        raise SystemExit(start_ranks(sys.argv[1:], run.ranks, logs, run.restarts, run.restart_delay))
    from pretrain.train import train as train_run

    train_run(config, console, command=f"maskmill {' '.join(sys.argv[1:])}")


@app.command()
def plan(
    recipe: Recipe,
    overrides: Overrides = None,
    nodes: Annotated[int, typer.Option(help="Machines.", min=1)] = 1,
    gpus_per_node: Annotated[int, typer.Option(help="GPUs of each machine.", min=1)] = 8,
    gpu: Annotated[str, typer.Option(help="v100, a100, a100-80, h100 or h200.")] = "h100",
    network: Annotated[
        float, typer.Option(help="Gbit/s a GPU has to other machines; 0: what such machines usually have.")
    ] = 0.0,
    utilisation: Annotated[
        float,
        typer.Option(help="Share of the GPU's peak that the arithmetic reaches; measure it if you can."),
    ] = 0.4,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Say what a run needs and costs before anyone pays: memory, time, epochs, and what does not add up.

    \b
    Example:
        maskmill plan bert_large --nodes 8 --gpu h100"""
    config = load_config(recipe, overrides or [])
    from pretrain.planning.forecast import forecast_phases
    from pretrain.planning.hardware import gpu_named
    from pretrain.planning.show import phases_as_values, show_phases
    from pretrain.planning.timing import Cluster

    found = forecast_phases(config, Cluster(nodes, gpus_per_node, gpu_named(gpu, network)), utilisation)
    if as_json:
        print(json.dumps(phases_as_values(found), indent=1))
    else:
        show_phases(found, config.zero.stage, console)


@app.command()
def export(
    source: Annotated[str, typer.Argument(metavar="PATH", help="A run or checkpoint folder, or a recipe.")],
    overrides: Overrides = None,
    out: Annotated[str, typer.Option(help="Folder of the model; default: `export` in the run folder.")] = "",
) -> None:
    """Write a checkpoint as a Hugging Face folder, after a proof that both models give the same logits.

    \b
    Example:
        maskmill export runs/base --out models/base"""
    from pretrain.exporting import export_run

    path, proof = export_run(run_folder(source, overrides), out)
    say(proof)
    say(f"exported to {path}")


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

    config = load_config(recipe, overrides or []) if recipe else None
    inspect_path(path, console, as_json=as_json, examples=examples, split=split, batch=batch, config=config)


@app.command()
def report(source: Annotated[str, typer.Argument(metavar="PATH", help="A run folder, or a recipe.")]) -> None:
    """Draw report.html, one self-contained page, from a run folder.

    \b
    Example:
        maskmill report runs/base"""
    from pretrain.report import render

    say(f"report: {render(run_folder(source, None))}")


@app.command()
def sync(source: Annotated[str, typer.Argument(metavar="PATH", help="A run folder, or a recipe.")]) -> None:
    """Send a run that W&B has not seen whole: every step once, in order, whatever the number of its lives.

    \b
    Example:
        maskmill sync runs/base"""
    from pretrain.run_folder import sync_run

    say(f"sent {sync_run(run_folder(source, None)):,} lines to W&B")


@app.command()
def fill(
    model: Folder,
    texts: Annotated[list[str], typer.Argument(metavar="TEXT...", help="Sentences with a [MASK] in each.")],
) -> None:
    """Fill the blanks of sentences with an exported model, through transformers.pipeline. [MASK] stands for whatever
    the model's own mask token is.

    \b
    Example:
        maskmill fill models/base "The capital of France is [MASK]." """
    from pretrain.evaluate.fill import fill_blanks

    for text, words in fill_blanks(model, texts):
        say(f"{text}\n    " + "   ".join(f"{word} {share:.1%}" for word, share in words))


@app.command()
def settings(
    contains: Annotated[str, typer.Argument(metavar="[WORD]", help="Only keys that contain this.")] = "",
) -> None:
    """List every setting: key, default, meaning.

    \b
    Example:
        maskmill settings train."""
    from launch.manual import manual

    for key, default, meaning in manual():
        if contains in key:
            console.print(f"[bold]{key}[/bold] = {escape(default)}\n    {escape(meaning)}")


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


def say(text: str) -> None:
    """Prints a line as it is."""
    console.print(escape(text), soft_wrap=True)


def main() -> None:
    """Entry point: exit code 2 and one line for what a person can put right, 130 after Ctrl-C."""
    end_with_supervisor(os.environ)
    if (
        "RANK" in os.environ
    ):  # DeepSpeed's launcher puts this before the verb; the environment says it as well
        sys.argv = [argument for argument in sys.argv if not argument.startswith("--local_rank")]
    first_rank = os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0"
    try:
        app(standalone_mode=False)
    except UserError as error:
        fail(str(error), 2)
    except typer.Exit as error:
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        fail("interrupted" if first_rank else "", 130)
    except OSError as error:
        if error.errno is None:
            raise
        name = f"{error.filename}: " if error.filename else ""
        fail(f"{name}{error.strerror}", 2)
    except Exception as error:
        usage = getattr(error, "format_message", None)  # click's own usage errors
        if usage is None:
            raise
        fail(usage(), 2)


def fail(line: str, code: int) -> None:
    """Prints `maskmill: line` to stderr, if there is something to say, and ends the process."""
    if line:
        print(f"maskmill: {line}", file=sys.stderr, flush=True)
    raise SystemExit(code)


if __name__ == "__main__":
    main()
