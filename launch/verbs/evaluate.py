"""Define the verb that scores an encoder on tasks: evaluate."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from data_pipeline.errors import UserError
from launch.app import Folder, app, errors, say
from launch.progress import stages

if TYPE_CHECKING:
    from pretrain.evaluate.compare import Other


def _list_settings(wanted: bool) -> None:
    if not wanted:
        return
    from launch.completion import manual
    from pretrain.tasks.settings import EvaluationSettings

    for key, value, meaning in manual(EvaluationSettings()):
        say(f"{key} = {value}\n    {meaning}")
    raise typer.Exit


Tasks = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TASK]... [KEY=VALUE]...",
        help="Tasks: attention, blimp, held_out, pairs and perplexity, without training; cola, sst2, mrpc, qqp,"
        " stsb, mnli, qnli, rte, wnli, ax, snli; swag, codah; squad1, squad2; conll2003, uner, wnut17; ud; own,"
        " questions and tagging for files of your own. Settings that differ from the recipe's: see --settings.",
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(
        help="The folder with the task's files, or with a folder per task; of perplexity also a file."
    ),
]
Suite = Annotated[
    str,
    typer.Option(
        help="All tasks of glue (without WNLI and AX), blimp, ud (every treebank) or all, of which --data, or a folder"
        " in it, has a folder."
    ),
]
Seeds = Annotated[
    int,
    typer.Option(
        min=1,
        max=10_000,
        help="Fine-tune with the seeds 1 to this number; medians are shown. Tasks without training have one score,"
        " and so many encoders of random weights beside it.",
    ),
]
Out = Annotated[Path | None, typer.Option(help="Folder of the results; default: `evaluation` in MODEL.")]
Floor = Annotated[
    bool,
    typer.Option(
        help="Score the same encoder without its weights as well, in the same way, but with --start-from trained"
        " on the task alone."
    ),
]
StartFrom = Annotated[
    str,
    typer.Option(
        metavar="TASK",
        help="Train the models that --save kept of another task further, a seed each: RTE, MRPC and STS-B from"
        " mnli; ax, which has no training examples, is scored with them.",
    ),
]
Save = Annotated[bool, typer.Option("--save", help="Keep the fine-tuned models, as Hugging Face folders.")]
Predictions = Annotated[
    bool,
    typer.Option(
        "--predictions",
        help="Keep what each fine-tuned model says of every scored example: of questions the files of SQuAD's"
        " scripts, with the 20 best answers.",
    ),
]
Beside = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="A model that reads from right to left, where MODEL reads from left to right: words are tagged from"
        " the states of both side by side (features=last, say).",
    ),
]
Against = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FOLDER",
        help="Show beside MODEL what an earlier `maskmill evaluate` found of another encoder on the same examples:"
        " its run or model folder, or what --out named. Can be given several times.",
    ),
]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")]
Jobs = Annotated[
    int,
    typer.Option(min=1, help="Score so many tasks and seeds at a time, each on its share of the cores."),
]
ShareOf = Annotated[
    str,
    typer.Option(
        help="Do only a part of the work, as 3/16 for the fourth of sixteen; the same command without it, when"
        " all are done, writes the results. slurm/evaluate.sbatch does so."
    ),
]
ListSettings = Annotated[
    bool,
    typer.Option("--settings", help="List the settings and stop.", is_eager=True, callback=_list_settings),
]


@app.command()
def evaluate(
    model: Folder,
    tasks: Tasks = None,
    data: Data = None,
    suite: Suite = "",
    seeds: Seeds = 1,
    out: Out = None,
    floor: Floor = True,
    start_from: StartFrom = "",
    save: Save = False,
    predictions: Predictions = False,
    beside: Beside = None,
    against: Against = None,
    markdown: Markdown = False,
    jobs: Jobs = 1,
    share: ShareOf = "0/1",
    settings: ListSettings = False,
) -> None:
    """Score an encoder on tasks: a Hugging Face folder, or the export of a run.

    Each task's score is shown beside that of the same encoder without its weights, and the best that needs no input.
    Results are JSON files in MODEL/evaluation; seeds that are finished there are not repeated.

    \b
    Example:
        maskmill evaluate runs/demo mrpc rte --data glue --seeds 5
        maskmill evaluate models/bert mrpc rte --data glue --seeds 5 --against runs/demo
        maskmill evaluate models/bert blimp --data blimp
        maskmill evaluate models/bert own --data reviews recipe=small epochs=5"""
    from launch.recipe import read_changes

    words, pairs = ([word for word in tasks or [] if ("=" in word) == is_pair] for is_pair in (False, True))
    changes = read_changes(pairs)
    if data is None:
        raise UserError("is missing", where="--data", expected="the folder with the task's files")
    from data_pipeline.io.files import refuse_links
    from data_pipeline.stages.executors import Share
    from pretrain.evaluate import evaluate as parts
    from pretrain.evaluate.compare import read_other
    from pretrain.run.files import EVALUATION
    from pretrain.tasks.encoders import find_encoders
    from pretrain.tasks.registry import chosen_tasks

    chosen, missing = chosen_tasks(words, suite, data)
    found = find_encoders(model)
    if out is None:
        refuse_links(model, [EVALUATION])
    others = list(dict.fromkeys(against or []))
    for folder in others:
        read_other(folder)  # refuses what is none before hours of work
    evaluations = parts.evaluations_of(
        chosen,
        changes,
        found,
        out or model / EVALUATION,
        range(1, seeds + 1),
        floor=floor,
        save=save,
        start_from=start_from,
        predictions=predictions,
        other=beside,
    )
    for line in filter(None, (evaluation.replaced() for evaluation in evaluations)):
        say(line)
    done = parts.score_parts(evaluations, stages(errors), jobs, Share.parsed(share))
    if share != "0/1":
        say(f"share {share}: {done} scores of a task and seed")
        return
    options = {
        "--suite": suite,
        "--data": data,
        "--seeds": seeds if seeds > 1 else "",
        "--start-from": start_from,
        "--beside": "FOLDER" if beside else "",
    }
    notes = [evaluation.run(stages(errors)) for evaluation in evaluations]
    if out is None:
        _record(model)
    tasks_of = {evaluation.name: evaluation.task for evaluation in evaluations}
    for line in _lines(notes, others, markdown, _Call(words, pairs, options, floor, tasks_of)):
        say(line)
    if missing:
        say(f"not scored, for {data} has no folder or files of theirs: {', '.join(missing)}")
    say(f"results: {out or model / EVALUATION}")


class _Call(NamedTuple):
    """What of a call's command line scores another model as it did its own."""

    named: list[str]
    """Tasks that are named: those of a suite need no naming."""
    pairs: list[str]
    options: dict[str, object]
    """Left out where they are empty."""
    floor: bool
    tasks: dict[str, str]
    """Name of a result -> its task."""

    def command(self, other: "Other", results: list[str]) -> str:
        """Return the command line that makes these results of another model."""
        wanted = dict.fromkeys(self.tasks[result] for result in results)
        names = [name for name in wanted if not self.options["--suite"] or name in self.named]
        options = {**self.options, "--out": "" if other.models else other.name}
        given = [str(word) for option, value in options.items() if value for word in (option, value)]
        model = other.name if other.models else "MODEL"
        last = [] if self.floor else ["--no-floor"]
        return shlex.join(["maskmill", "evaluate", model, *names, *self.pairs, *given, *last])


def _lines(notes: list[dict[str, Any]], others: list[Path], markdown: bool, call: _Call) -> Iterator[str]:
    """Yield the lines of the results' table, and what is to be said of those of other encoders."""
    from pretrain.evaluate.compare import read_other, remarks, result_lines

    found = [read_other(folder) for folder in others]
    yield from result_lines(notes, found, markdown)
    yield from remarks(notes, found, call.command)


def _record(model: Path) -> None:
    """Tell the tracker of a run of its scores."""
    from pretrain.monitoring.wandb_run import record_scores
    from pretrain.run.files import CONFIG

    if (model / CONFIG).is_file():
        record_scores(model)
