"""Define the verb that scores an encoder on tasks: evaluate."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from data_pipeline.errors import UserError
from launch.app import Folder, app, errors, say
from launch.progress import stages


def _list_settings(wanted: bool) -> None:
    if not wanted:
        return
    from launch.settings.manual import manual
    from pretrain.evaluate.downstream.settings import EvaluationSettings

    for key, value, meaning in manual(EvaluationSettings()):
        say(f"{key} = {value}\n    {meaning}")
    raise typer.Exit


@app.command()
def evaluate(
    model: Folder,
    tasks: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TASK]... [KEY=VALUE]...",
            help="Tasks: attention, blimp, held_out, pairs and perplexity, without training; cola, sst2, mrpc, qqp,"
            " stsb, mnli, qnli, rte, wnli, ax, snli; swag, codah; squad1, squad2; conll2003, uner, wnut17; ud; own,"
            " questions and tagging for files of your own. Settings that differ from the recipe's: see --settings.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="The folder with the task's files, or with a folder per task; of perplexity also a file."
        ),
    ] = None,
    suite: Annotated[
        str,
        typer.Option(
            help="All tasks of glue (without WNLI), blimp, ud (every treebank) or all, of which --data, or a folder in"
            " it, has a folder."
        ),
    ] = "",
    seeds: Annotated[
        int,
        typer.Option(
            min=1,
            help="Fine-tune with the seeds 1 to this number; medians are shown. Tasks without training have one score,"
            " and so many encoders of random weights beside it.",
        ),
    ] = 1,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the results; default: `evaluation` in MODEL.")
    ] = None,
    floor: Annotated[
        bool, typer.Option(help="Score the same encoder without its weights as well, in the same way.")
    ] = True,
    start_from: Annotated[
        str,
        typer.Option(
            metavar="TASK",
            help="Train the models that --save kept of another task further, a seed each: RTE, MRPC and STS-B from"
            " mnli; ax, which has no training examples, is scored with them.",
        ),
    ] = "",
    save: Annotated[
        bool, typer.Option("--save", help="Keep the fine-tuned models, as Hugging Face folders.")
    ] = False,
    predictions: Annotated[
        bool,
        typer.Option(
            "--predictions",
            help="Keep what each fine-tuned model says of every scored example: of questions the files of SQuAD's"
            " scripts, with the 20 best answers.",
        ),
    ] = False,
    beside: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="A model that reads from right to left, where MODEL reads from left to right: words are tagged from"
            " the states of both side by side (features=last, say).",
        ),
    ] = None,
    against: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FOLDER",
            help="Show beside MODEL what an earlier `maskmill evaluate` found of another encoder on the same examples:"
            " its run or model folder, or what --out named. Can be given several times.",
        ),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False,
    jobs: Annotated[
        int,
        typer.Option(min=1, help="Score so many tasks and seeds at a time, each on its share of the cores."),
    ] = 1,
    share: Annotated[
        str,
        typer.Option(
            help="Do only a part of the work, as 3/16 for the fourth of sixteen; the same command without it, when"
            " all are done, writes the results. slurm/evaluate.sbatch does so."
        ),
    ] = "0/1",
    settings: Annotated[
        bool,
        typer.Option(
            "--settings", help="List the settings and stop.", is_eager=True, callback=_list_settings
        ),
    ] = False,
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
    from launch.settings.evaluation import read_changes

    words = tasks or []
    changes = read_changes([word for word in words if "=" in word])
    if data is None:
        raise UserError("is missing", where="--data", expected="the folder with the task's files")
    from data_pipeline.stages.executors import Share
    from pretrain.evaluate.downstream import parts
    from pretrain.evaluate.downstream.encoders import find_encoders
    from pretrain.evaluate.downstream.evaluate import Evaluation
    from pretrain.evaluate.downstream.results.against import Other, read_other, remarks
    from pretrain.evaluate.downstream.results.table import result_lines
    from pretrain.evaluate.downstream.settings import settings_for
    from pretrain.evaluate.downstream.tasks.registry import check_name, chosen_tasks
    from pretrain.monitoring.wandb.artifacts import record_scores
    from pretrain.run.folder import CONFIG
    from pretrain.run.task_scores import EVALUATION

    if start_from and check_name(start_from) in words:
        raise UserError(f"{start_from} cannot start from itself", where="--start-from")
    chosen, missing = chosen_tasks([word for word in words if "=" not in word], suite, data)
    found = find_encoders(model)
    wanted = list(dict.fromkeys(against or []))
    for folder in wanted:
        read_other(folder)  # refuses what is none before hours of work
    evaluations = [
        each
        for name, folder in chosen
        for each in parts.with_lower_features(
            Evaluation(
                name,
                parts.beside(parts.pick_encoder(name, found), beside),
                folder,
                out or model / EVALUATION,
                settings_for(name, changes),
                range(1, seeds + 1),
                floor,
                save,
                start_from,
                predictions,
            )
        )
    ]
    for line in filter(None, (evaluation.replaced() for evaluation in evaluations)):
        say(line)
    done = parts.score_parts(evaluations, stages(errors), jobs, Share.parsed(share))
    if share != "0/1":
        say(f"share {share}: {done} scores of a task and seed")
        return
    notes = [evaluation.run(stages(errors)) for evaluation in evaluations]
    if out is None and (model / CONFIG).is_file():
        record_scores(model)

    def command_for(other: Other, names: list[str]) -> str:
        of_names = dict.fromkeys(each.task for each in evaluations if each.name in names)
        options = {
            "--suite": suite,
            "--data": data,
            "--seeds": seeds if seeds > 1 else "",
            "--start-from": start_from,
            "--beside": "FOLDER" if beside else "",
            "--out": "" if other.weights else other.name,
        }
        named = [name for name in of_names if not suite or name in words]  # a suite's need no naming
        words_of = [*named, *(word for word in words if "=" in word)]
        return _command(other.name if other.weights else "MODEL", words_of, options, floor)

    others = [read_other(folder) for folder in wanted]
    for line in (*result_lines(notes, others, markdown), *remarks(notes, others, command_for)):
        say(line)
    if missing:
        say(f"not scored, for {data} has no folder or files of theirs: {', '.join(missing)}")
    say(f"results: {out or model / 'evaluation'}")


def _command(model: str, words: list[str], options: dict[str, object], floor: bool) -> str:
    """Return the command line that scores a model as this call did its own, without the options that are empty."""
    given = [str(word) for name, value in options.items() if value for word in (name, value)]
    return shlex.join(["maskmill", "evaluate", model, *words, *given, *([] if floor else ["--no-floor"])])
