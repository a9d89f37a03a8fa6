"""Pretrain BERT-family encoders from Python: what the command line does, with the same recipes, settings and files.

    import maskmill

    mine = {"data.sources": "my_text.txt", "data.vocab": "vocabulary", "data.out": "shards", "run.dir": "runs/mine"}
    maskmill.train_vocabulary("demo", mine)
    maskmill.prepare("demo", mine)
    maskmill.train("demo", mine)
    maskmill.export("runs/mine")
    maskmill.fill("runs/mine", ["The capital of France is [MASK]."])

`import maskmill` loads no other library; each function loads what it needs. A mistake that you can mend raises
UserError, with one line that says what is wrong, where, and what is expected. Progress and warnings go to standard
error.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from data_pipeline.errors import UserError

if TYPE_CHECKING:
    from data_pipeline.records import Examples, ShowProgress
    from data_pipeline.shards.index import Index
    from data_pipeline.vocabulary.base import Vocabulary
    from pretrain.config.settings import RunConfig
    from pretrain.export.export import Exported
    from pretrain.run.task_scores import TaskScore

__all__ = [
    "Filled",
    "Training",
    "UserError",
    "evaluate",
    "export",
    "fill",
    "load_config",
    "prepare",
    "read_index",
    "read_shards",
    "train",
    "train_vocabulary",
]

Settings = Mapping[str, Any]
"""Dotted name of a setting -> its value, such as {"train.steps": 500, "data.sources": ["a.txt", "b.txt"]}."""


class Training(NamedTuple):
    """The state in which `train` left a run."""

    folder: Path
    finished: bool
    """False: a signal or run.stop_after stopped it; the same call resumes."""
    step: int
    """Updates so far."""
    metrics: dict[str, float]
    """The newest metrics of each name, such as held_out_mask_loss, in nats, and held_out_mask_accuracy, from 0 to 1."""


class Filled(NamedTuple):
    """A sentence with a blank, and the words that a model fills it with."""

    text: str
    words: list[tuple[str, float]]
    """Words and their probabilities, likeliest first."""


def load_config(recipe: str, settings: Settings | None = None) -> "RunConfig":
    """Return the settings of a recipe, a shipped name or a YAML path, changed by `settings`. Raises UserError, which
    lists all mistakes."""
    from launch.recipe import load_config as load

    return load(recipe, _overrides(settings))


def train_vocabulary(recipe: str, settings: Settings | None = None) -> "Vocabulary":
    """Train a vocabulary on data.sources, write it to the folder data.vocab, and return it; one that was trained so
    before is returned as it is."""
    from data_pipeline.vocabulary.train import learn_vocabulary

    config = load_config(recipe, settings)
    return learn_vocabulary(config.data, config.vocabulary, _progress(), warn=_say)[0]


def prepare(recipe: str, settings: Settings | None = None) -> "list[Index]":
    """Turn data.sources into shards in data.out, and return the index of each phase, of one where there are no phases.
    Shards that were prepared so before are returned as they are."""
    from launch.verbs.data import prepare_shards

    return prepare_shards(load_config(recipe, settings), _progress(), _say)


def read_index(folder: str | Path) -> "Index":
    """Return the index of a folder, or URI, of shards: counts, settings, statistics, vocabulary."""
    from data_pipeline.shards.index import Index

    return Index.load(str(folder))


def read_shards(folder: str | Path, split: str = "train") -> "Iterator[Examples]":
    """Yield the blocks of a split, train or held_out, in the order of the files: flat arrays of some hundred masked
    examples, each with its checksum verified."""
    from data_pipeline.shards.shard import BlockReader

    index = read_index(folder)
    if split not in index.splits:
        raise UserError(f"has no split {split}", where=folder, expected=f"one of {', '.join(index.splits)}")
    yield from BlockReader(index, index.splits[split]).all_blocks()


def train(recipe: str, settings: Settings | None = None) -> Training:
    """Train on prepared shards into the folder run.dir, or resume what is there, in run.ranks processes that this one
    starts and watches. Progress is printed as by `maskmill train`.

    Raises UserError for a mistake in settings, shards or run folder, and RuntimeError where the ranks crashed: their
    logs are in the folder `logs` of the run."""
    from launch.verbs.train import start_training
    from pretrain.run.folder import read_summary

    overrides = _overrides(settings)
    config = load_config(recipe, settings)
    code = start_training(config, recipe, overrides, ["train", recipe, *overrides])
    folder = Path(config.run.dir)
    if code not in (0, config.run.stopped_exit_code):
        raise RuntimeError(f"training ended with exit code {code}: see {folder / 'logs'}")
    summary = read_summary(folder)
    metrics = {name: value for name, value in summary.items() if isinstance(value, float)}
    return Training(folder, summary.get("status") == "finished", int(summary.get("step", 0)), metrics)


def export(run: str | Path, out: str | Path = "", license: str = "") -> "Exported":
    """Write the newest checkpoint of a run, or the checkpoint `run`, as a Hugging Face folder: `out`, or the folder
    `export` of the run. Raises UserError, and leaves nothing, unless transformers computes the same logits."""
    from pretrain.export.export import export_run

    return export_run(Path(run), str(out), license)


def fill(model: str | Path, texts: Sequence[str], top: int = 5) -> list[Filled]:
    """Fill the one [MASK] of each text with the `top` likeliest words of an exported model, a run's or a Hugging Face
    folder."""
    from pretrain.export.fill import fill_blanks, run_and_export

    _, exported = run_and_export(Path(model))
    return [Filled(text, words) for text, words in fill_blanks(exported, list(texts), top)]


def evaluate(
    model: str | Path,
    task: str,
    data: str | Path,
    settings: Settings | None = None,
    *,
    seeds: int = 1,
    out: str | Path = "",
    random_init: bool = True,
) -> "list[TaskScore]":
    """Score an encoder, a run's or a Hugging Face folder, on a task with its files in `data`, and return the score of
    each split by the task's main metric, beside its baselines. `settings`: those of `maskmill evaluate`, such as
    {"recipe": "small"}. Results go to `out`, or the folder `evaluation` in `model`; seeds that are there already are
    not repeated. `random_init`: score the same encoder without its weights too."""
    from launch.recipe import read_changes
    from pretrain.evaluate.evaluate import evaluations_of
    from pretrain.run.task_scores import EVALUATION, task_scores
    from pretrain.tasks.encoders import find_encoders
    from pretrain.tasks.registry import chosen_tasks

    folder = Path(model)
    chosen, _ = chosen_tasks([task], "", Path(data))
    place = Path(out) if out else folder / EVALUATION
    changes = read_changes(_overrides(settings))
    (evaluation, *_) = evaluations_of(
        chosen, changes, find_encoders(folder), place, range(1, seeds + 1), floor=random_init
    )
    return list(task_scores(evaluation.run(_progress())))


def _overrides(settings: Settings | None) -> list[str]:
    """Return settings as the `key=value` words of a command line."""
    return [f"{key}={_written(value)}" for key, value in (settings or {}).items()]


def _written(value: Any) -> str:
    if isinstance(value, str | Path):
        return str(value)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Sequence):
        return "[" + ",".join(_written(item) for item in value) + "]"
    return repr(value)


def _progress() -> "ShowProgress":
    """Return what shows on standard error the progress of stages that take long."""
    from launch.app import errors
    from launch.progress import late_stages

    return late_stages(errors)


def _say(line: str) -> None:
    """Print a line, such as a warning about the text, on standard error."""
    from rich.markup import escape

    from launch.app import errors

    errors.print(escape(line), soft_wrap=True)
