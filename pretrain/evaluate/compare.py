"""Compare the results of other encoders with those of one, and show them in a terminal or as Markdown.

Results are compared that are of the same examples and metric. A line says in what another encoder's were made
otherwise, and a mark where the seeds of two encoders do not overlap.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import comb
from pathlib import Path
from typing import Any

from data_pipeline.errors import UserError
from pretrain.run.files import CONFIG, EVALUATION
from pretrain.run.folder import model_folders
from pretrain.run.human import markdown
from pretrain.run.task_scores import HEADS, TaskScore, read_results, task_metric, task_scores
from pretrain.tasks.encoders import Encoder, find_encoders
from pretrain.tasks.settings import defaults

# Find which results of another encoder can stand beside those of this one, and in what they were made otherwise.


OPTION = "--against"
COLUMNS = ("text", "second_text", "label")
"""Settings of own files that say what an example is."""
NOT_OF_TRAINING = {*COLUMNS, "labels", "recipe", "by_epoch", "test", "part", "carve", "class_order"}
"""Settings that are no difference between two trainings: they say what is scored, or are said by others."""
OF_A_VOCABULARY = ("perplexity",)
"""Metrics per token, which encoders of different vocabularies do not share."""
FURTHER = {"blimp": ("group_accuracy",), "perplexity": ("perplexity_per_word", "bits_per_character")}
"""Metrics with rows of their own beside the one that a task is known by: papers differ in which they print, or encoders
in which they share."""
MARK = "*"


@dataclass(frozen=True)
class Other:
    """Another encoder: a run, a Hugging Face folder, or a folder that --out named."""

    name: str
    """As it was given."""
    models: tuple[dict[str, str], ...]
    """What a score of each of its models is known by; empty where the folder holds results alone."""
    notes: dict[str, dict[str, Any]]
    """Task -> its result.json."""

    def lack(self, note: dict[str, Any]) -> str:
        """Say why it has no score to stand beside a result; empty where it has one."""
        result = self.notes.get(note["task"])
        if result is None:
            return "not scored yet"
        if self.models and (what := self._changed(_table(result, "encoder"))):
            return what
        if files := _differing_files(result, note):
            return f"scored on other files: {', '.join(files)}"
        examples, own = (_table(_table(one, "details"), "examples") for one in (result, note))
        for split in note["scores"]:
            if split in examples and examples[split] != own[split]:
                return f"scored on {examples[split]} examples of {split}, here {own[split]}"
        settings = [defaults() | _table(one, "settings") for one in (result, note)]
        if columns := [key for key in COLUMNS if settings[0][key] != settings[1][key]]:
            return f"scored with another {' and '.join(columns)}"
        if result.get("headline") != note["headline"]:
            return f"scored by {result.get('headline')}, here by {note['headline']}"
        return ""

    def _changed(self, scored: dict[str, Any]) -> str:
        """Say what of the model that was `scored` is none of its models' now; empty where it is one of them."""
        if scored.get("weights") not in [model["weights"] for model in self.models]:
            return "scored with other weights than it has now"
        if "config" not in scored:
            return "scored by an older version"
        if any(model.items() <= scored.items() for model in self.models):
            return ""
        return "scored with another config.json or tokenizer than it has now"

    def score(self, note: dict[str, Any], of: TaskScore) -> TaskScore | None:
        """Return its score of the same split by the same metric; None where there is none that can be compared."""
        result = self.notes.get(note["task"], {})
        tokenizers = [_table(one, "encoder").get("tokenizer") for one in (result, note)]
        if self.lack(note) or (of.metric in OF_A_VOCABULARY and tokenizers[0] != tokenizers[1]):
            return None
        split = _split(of, note)
        return next((one for one in task_scores(result, of.metric) if _split(one, result) == split), None)

    def otherwise(self, note: dict[str, Any]) -> str:
        """Say in what its result was made otherwise: settings of the training, precision, number of seeds."""
        other, own = (_made(one) for one in (self.notes[note["task"]], note))
        keys = dict.fromkeys((*own, *other))
        return ", ".join(
            f"{key}={_shown(other.get(key))} (here {_shown(own.get(key))})"
            for key in keys
            if other.get(key) != own.get(key)
        )


def read_other(folder: Path) -> Other:
    """Read the results of another encoder: those in its `evaluation` folder, or in `folder` itself where that holds no
    model. Raises UserError where there is neither a model nor a result."""
    if (folder / CONFIG).is_file() or model_folders(folder):
        models, place = find_encoders(folder), folder / EVALUATION
    else:
        models, place = [], folder
    notes = {str(note.get("task")): note for note in read_results(place)}
    if not notes and not models:
        raise UserError(
            "has neither a model nor results",
            where=f"{OPTION} {folder}",
            expected="a run, a Hugging Face folder, or a folder that --out named",
        )
    return Other(str(folder), tuple(Encoder(model).identity for model in models), notes)


def remarks(
    notes: Sequence[dict[str, Any]], others: Sequence[Other], command: Callable[[Other, list[str]], str]
) -> Iterator[str]:
    """Yield a line for each way in which another encoder's results were made otherwise, with its tasks, and for each
    reason for which it has none, with the command that makes them."""
    for other in others:
        lacking: dict[str, list[str]] = {}
        differing: dict[str, list[str]] = {}
        for note in notes:
            if why := other.lack(note):
                lacking.setdefault(why, []).append(note["task"])
            elif how := other.otherwise(note):
                differing.setdefault(how, []).append(note["task"])
        for how, tasks in differing.items():
            yield f"{other.name}: {', '.join(tasks)} with {how}"
        for why, tasks in lacking.items():
            yield f"{other.name}: {', '.join(tasks)} {why}: {command(other, tasks)}"


def apart(one: TaskScore, other: TaskScore | None) -> bool:
    """Return whether both have several seeds, and no seed of the one reaches those of the other. Not where all seeds of
    one are equal, as of a model that is not trained: they are one score."""
    if other is None or min(one.seeds, other.seeds) < 2:
        return False
    if one.lowest == one.highest or other.lowest == other.highest:
        return False
    return one.lowest > other.highest or one.highest < other.lowest


def by_chance(one: TaskScore, other: TaskScore) -> float:
    """Return how probable it is that two equal encoders of so many seeds, drawn independently, are apart: of all orders
    of n + m different scores the two that have all n first or last."""
    return 2 / comb(one.seeds + other.seeds, one.seeds)


def _split(score: TaskScore, note: dict[str, Any]) -> str:
    """Return the split of a score, which does not name it where its result has only one."""
    return score.split or next(iter(note["scores"]))


def _differing_files(*notes: dict[str, Any]) -> list[str]:
    """Return the files of which the hashes differ, or that one of both lacks. What one alone has scored as a test file
    is no difference: the scores of that split have none to stand beside."""
    both = [_table(one, "files") for one in notes]
    tests = [bool(_table(one, "settings").get("test")) for one in notes]
    allowed = {
        name for n in (0, 1) if tests[n] > tests[1 - n] for name in both[n].keys() - both[1 - n].keys()
    }
    differ = {name for name in {*both[0], *both[1]} if both[0].get(name) != both[1].get(name)}
    return sorted(differ - allowed)


def _made(note: dict[str, Any]) -> dict[str, Any]:
    """Return what a result was made with, as far as another one of the same task may differ."""
    made: dict[str, Any] = {}
    if "train" in _table(_table(note, "details"), "examples"):
        settings = defaults() | _table(note, "settings")
        made = {key: value for key, value in settings.items() if key not in NOT_OF_TRAINING}
    conditions = note.get("conditions")
    states = [one for one in conditions if isinstance(one, dict)] if isinstance(conditions, list) else []
    made["precision"] = " and ".join(dict.fromkeys(str(one.get("precision")) for one in states))
    seeds = note.get("seeds")
    made["seeds"] = len(seeds) if isinstance(seeds, list) else 0
    return made


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _table(note: dict[str, Any], key: str) -> dict[str, Any]:
    value = note.get(key)
    return value if isinstance(value, dict) else {}


# Show results: a row per task and split, what was measured beside what needs no pretraining, and beside other
# encoders.


def result_lines(
    notes: Sequence[dict[str, Any]], others: Sequence[Other] = (), as_markdown: bool = False
) -> list[str]:
    """Return a table of the headline metrics in percent: medians over the seeds, where there are several; aligned, or
    in Markdown. A column for each other encoder has the scores that can be compared, with a mark where no seed of the
    one reaches the other. Then the other metrics and notes of each task, a line each."""
    heads = [*HEADS, *(other.name for other in others)]
    rows, chances = [], []
    scored = [(note, score) for note in notes for score in _scores(note, further=bool(others))]
    for note, score in scored:
        others_scores = [other.score(note, score) for other in others]
        marked = [one for one in others_scores if one and apart(score, one)]
        chances += [(by_chance(score, one), score.seeds, one.seeds) for one in marked]
        rows.append([*score.cells, *(_cell(one, one in marked) for one in others_scores)])
    lines = markdown(heads, rows).splitlines() if as_markdown else _aligned([heads, *rows])
    if chances:
        chance, *seeds = max(chances)
        lines += [""] if as_markdown else []
        lines.append(
            f"{MARK} no seed of the one reaches the other; of equal encoders with {seeds[0]} and {seeds[1]} seeds"
            f" in 1 of {1 / chance:.0f} cases"
        )
    return [*lines, *(line for note in notes for line in _remarks(note))]


def _scores(note: dict[str, Any], *, further: bool) -> Iterator[TaskScore]:
    """Yield what has a row: the scores by the metric that a task is known by, and with `further` those by FURTHER."""
    yield from task_scores(note)
    if further:
        for metric in FURTHER.get(note["task"], ()):
            yield from task_scores(note, metric)


def _cell(score: TaskScore | None, is_marked: bool) -> str:
    return f"{score.cell}{MARK if is_marked else ''}" if score else ""


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _remarks(note: dict[str, Any]) -> Iterator[str]:
    task = note["task"]
    for split, scores in note["scores"].items():
        others = [
            f"{name} {task_metric(name).text(spread['median'])}"
            for name, spread in scores.items()
            if name != note["headline"]
        ]
        if others:
            yield f"{task} {split}: {', '.join(others)}"
    if groups := note["details"].get("groups"):
        yield f"{task}: {', '.join(f'{group} {value:.1f}' for group, value in groups.items())}"
    if note["details"].get("unknown_share"):
        yield f"{task}: {note['details']['unknown_share']:.2f} % of the tokens are unknown to the vocabulary"
    for remark in note["notes"]:
        yield f"{task}: {remark}"
