"""Print the table of docs/evaluation.md from what `maskmill evaluate` left, encoder by encoder, and which of them are
above their floor in every seed.

python -m tests.benchmarks.evaluation_table "BERT-Mini=runs/books/evaluation" "MiniLM=minilm/evaluation"
"""

import sys
from pathlib import Path

from data_pipeline.errors import UserError
from pretrain.run.task_scores import RESULT, TaskScore, shown, task_scores
from pretrain.run.tolerant_json import table
from tests.benchmarks.studies import markdown

Found = dict[tuple[str, str, str], dict[str, TaskScore]]
"""(task, split, metric) -> encoder -> score."""
FURTHER = {"blimp": ("group_accuracy",)}
"""Metrics that have rows of their own beside the one that a task is known by: papers differ in which they print."""


def read(folders: dict[str, Path]) -> Found:
    """Return the scores of every folder of results: of each task the metric that it is known by, and FURTHER ones.
    Raises UserError for a folder without any."""
    found: Found = {}
    for name, folder in folders.items():
        paths = sorted(folder.glob(f"*/{RESULT}"))
        if not paths:
            raise UserError(f"has no */{RESULT}", where=folder, expected="what maskmill evaluate --out wrote")
        for path in paths:
            note = table(path)
            metrics = [note.get("headline"), *FURTHER.get(str(note.get("task")), ())]
            for score in (one for metric in metrics for one in task_scores({**note, "headline": metric})):
                found.setdefault((score.task, score.split, score.metric), {})[name] = score
    return found


def cell(score: TaskScore | None) -> str:
    """Write the median, and the lowest and highest of several seeds."""
    if score is None:
        return ""
    low, high = (shown(score.metric, value) for value in (score.lowest, score.highest))
    ends = f" ({low} to {high})" if score.seeds > 1 else ""
    return f"{shown(score.metric, score.median)}{ends}"


def rows(found: Found, names: list[str], with_floor: list[str]) -> list[list[str]]:
    """Return a row a task: each encoder beside the same one not pretrained, where that was scored, and the trivial
    answer."""
    lines = []
    for (task, split, metric), scores in sorted(found.items()):
        line = [f"{task} {split}".strip(), metric]
        for name in names:
            score = scores.get(name)
            line.append(cell(score))
            line += [cell(score.floor if score else None)] if name in with_floor else []
        trivial = next((s.trivial for s in scores.values() if s.trivial is not None), None)
        lines.append([*line, "" if trivial is None else shown(metric, trivial)])
    return lines


def verdicts(found: Found, name: str) -> list[str]:
    """Say of one encoder where all of its seeds are above all of its floor's, and where not."""
    compared = {key: score for key, of in found.items() if (score := of.get(name)) and score.floor}
    above = {key for key, score in compared.items() if score.floor and is_above(score, score.floor)}
    return [
        f"{name}, {word}: {', '.join(sorted(map(_named, keys)))}."
        for word, keys in (
            ("above its floor in every seed", above),
            ("not above its floor in every seed", compared.keys() - above),
        )
        if keys
    ]


def _named(key: tuple[str, str, str]) -> str:
    """Name a task and split, and its metric where it has several."""
    task, split, metric = key
    further = FURTHER.get(task, ())
    return f"{task} {split}".strip() + (f" by {metric}" if metric in further else "")


def is_above(score: TaskScore, floor: TaskScore) -> bool:
    """Return whether the ranges of both do not overlap, the score's on the better side."""
    is_cost = any(word in score.metric for word in ("loss", "perplexity", "bits"))
    return score.highest < floor.lowest if is_cost else score.lowest > floor.highest


def report(folders: dict[str, Path]) -> str:
    """Return table, seeds and verdicts as Markdown."""
    found, names = read(folders), list(folders)
    with_floor = [name for name in names if any(of[name].floor for of in found.values() if name in of)]
    heads = ["task", "metric"]
    for name in names:
        heads += [name, *([f"{name}, not pretrained"] if name in with_floor else [])]
    seeds = sorted({score.seeds for of in found.values() for score in of.values()})
    lines = [markdown([*heads, "trivial"], rows(found, names, with_floor)), ""]
    lines.append(f"Medians, lowest and highest over {' or '.join(map(str, seeds))} seeds.")
    return "\n".join([*lines, *(line for name in names for line in verdicts(found, name))])


def main(arguments: list[str]) -> None:
    """Print the report of NAME=FOLDER ..."""
    pairs = [argument.partition("=") for argument in arguments]
    if not pairs or not all(name and folder for name, _, folder in pairs):
        raise SystemExit(f"{__doc__}")
    print(report({name: Path(folder) for name, _, folder in pairs}))


if __name__ == "__main__":
    main(sys.argv[1:])
