"""Choose the right one of several endings: SWAG (Zellers et al. 2018) and CODAH (Chen et al. 2019)."""

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import UserError, first_line
from pretrain.tasks import metrics
from pretrain.tasks.base import ModelAnswers, Scores, Task, TaskData
from pretrain.tasks.files import (
    SPLITS,
    Split,
    at_line,
    hashes,
    not_empty,
    predicted_lines,
    read_lines,
    read_tsv,
)
from pretrain.tasks.inputs import Feature, InputBuilder
from pretrain.tasks.settings import EvaluationSettings

ENDINGS = 4


class Item(NamedTuple):
    """A context, what each ending is read as after it, and the right one's index."""

    context: str
    endings: tuple[str, ...]
    label: int


class Choice(Task):
    """Score every ending behind its context; the softmax over an item's endings is trained."""

    kind = "MultipleChoice"
    needs_both_ways = "its first token, which the head reads, sees no text"

    def features(self, items: Sequence[Item], builder: InputBuilder, data: TaskData) -> list[Feature]:
        """Return a sequence per ending; see Task.features."""
        return [
            Feature(
                tuple(builder.pair(item.context, ending) for ending in item.endings), {"labels": item.label}
            )
            for item in items
        ]

    def score(self, answered: ModelAnswers) -> Scores:
        """Return the accuracy; see Task.score."""
        return {"accuracy": metrics.accuracy(_gold(answered.items), np.stack(answered.answers).argmax(-1))}

    def predictions(self, answered: ModelAnswers) -> dict[str, str]:
        """Return a file of the right place and the chosen one, counted from 0; see Task.predictions."""
        return predicted_lines(_gold(answered.items).tolist(), np.stack(answered.answers).argmax(-1).tolist())

    def baseline(self, split: Split, data: TaskData) -> Scores:
        """Return the accuracy of always the same, most often right, place."""
        gold = _gold(split.items)
        return {"accuracy": metrics.accuracy(gold, np.full_like(gold, np.bincount(gold).argmax()))}

    def _data(self, paths: list[Path], found: list[tuple[list[Item], int]]) -> TaskData:
        """Return what the files hold, from the items and the number of empty rows of each."""
        train, *scored = (
            not_empty(Split(name, items, skipped), path)
            for name, (items, skipped), path in zip(SPLITS, found, paths, strict=False)
        )
        notes = [f"{one.name}: {one.skipped} empty rows skipped" for one in (train, *scored) if one.skipped]
        return TaskData(train, tuple(scored), (), hashes(paths), tuple(notes))


class Swag(Choice):
    """SWAG's train.csv and val.csv. The second sequence of an ending is the start of its sentence and the ending, as in
    BERT (Devlin et al. 2019, section 4.4)."""

    def __init__(self) -> None:
        super().__init__("swag", "SWAG", "accuracy")

    def read(self, folder: Path, settings: EvaluationSettings) -> TaskData:
        """Read both files; see Task.read."""
        paths = [folder / "train.csv", folder / "val.csv"]
        return self._data(paths, [_swag_items(path) for path in paths])


class Codah(Choice):
    """CODAH's train.tsv, dev.tsv and test.tsv of one of its folds, the first one where the folder holds all: category,
    prompt, four endings, the right one."""

    file_settings = ("test",)

    def __init__(self) -> None:
        super().__init__("codah", "CODAH", "accuracy")

    def read(self, folder: Path, settings: EvaluationSettings) -> TaskData:
        """Read the files; see Task.read."""
        first = folder / "cv_split" / "fold_0"
        has_folds = first.is_dir()
        paths = [(first if has_folds else folder) / name for name in _files(settings)]
        names = ["category", "prompt", *(f"ending{i}" for i in range(ENDINGS)), "label"]
        found = []
        for path in paths:
            table = read_tsv(path, names)
            items = [
                Item(
                    row["prompt"],
                    tuple(row[f"ending{i}"] for i in range(ENDINGS)),
                    _label(row["label"], path, line),
                )
                for line, row in zip(table.lines, table.rows, strict=True)
            ]
            found.append((items, table.skipped))
        data = self._data(paths, found)
        return replace(data, notes=("fold_0 of five folds", *data.notes)) if has_folds else data


def _files(settings: EvaluationSettings) -> list[str]:
    return [f"{name}.tsv" for name in SPLITS[: 2 + settings.test]]


def _swag_items(path: Path) -> tuple[list[Item], int]:
    """Return the items, and how many rows are empty. Each line is a row of its own: SWAG's texts have no line breaks,
    so a quote that a line leaves open is a stray one, which would take in the rows behind it."""
    needed = ["sent1", "sent2", *(f"ending{i}" for i in range(ENDINGS)), "label"]
    lines = read_lines(path)
    while lines and not lines[-1]:
        lines.pop()
    names = _cells(lines[0], path, 1) if lines else []
    if lacking := [name for name in needed if name not in names]:
        raise UserError(
            f"has no column {', '.join(lacking)}", where=at_line(path, 1), expected="SWAG's line of names"
        )
    items, empty = [], 0
    for number, line in enumerate(lines[1:], 2):
        if not line:
            empty += 1
            continue
        cells = _cells(line, path, number)
        if len(cells) != len(names):
            raise UserError(
                "has another number of columns than the first line",
                where=at_line(path, number),
                expected=f"{len(names)}, separated by commas",
            )
        row = dict(zip(names, cells, strict=True))
        endings = tuple(f"{row['sent2']} {row[f'ending{i}']}".strip() for i in range(ENDINGS))
        items.append(Item(row["sent1"], endings, _label(row["label"], path, number)))
    return items, empty


def _cells(line: str, path: Path, number: int) -> list[str]:
    """Return the cells of one line of comma-separated values."""
    try:
        return next(csv.reader([line], strict=True), [])
    except csv.Error as error:
        raise UserError(
            f"is no row of comma-separated values: {first_line(error)}",
            where=at_line(path, number),
            expected='a row in a line, with every quote closed, and "" for a quote within quotes',
        ) from None


def _label(text: str, path: Path, line: int) -> int:
    if text not in [str(i) for i in range(ENDINGS)]:
        raise UserError(
            f"has the label {text!r}",
            where=at_line(path, line),
            expected=f"a number from 0 to {ENDINGS - 1}",
        )
    return int(text)


def _gold(items: Sequence[Item]) -> NDArray[Any]:
    return np.array([item.label for item in items])
