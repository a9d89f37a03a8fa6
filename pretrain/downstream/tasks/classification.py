"""Classify texts and pairs of texts, or predict a number for them: GLUE, SNLI, and a user's own files.

GLUE: Wang et al. 2019; the files are read as they were published, quirks included."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import UserError
from pretrain.downstream import metrics
from pretrain.downstream.inputs import InputBuilder
from pretrain.downstream.settings import EvaluationSettings
from pretrain.downstream.tasks.base import (
    Feature,
    Scores,
    Split,
    Task,
    TaskData,
    hashes,
    not_empty,
    with_training,
)
from pretrain.downstream.tasks.tables import Row, column, read_json_lines, read_tsv

METRICS: dict[str, Callable[[NDArray[Any], NDArray[Any]], float]] = {
    "accuracy": metrics.accuracy,
    "f1": metrics.f1,
    "matthews": metrics.matthews,
    "pearson": metrics.pearson,
    "spearman": metrics.spearman,
}


class TextItem(NamedTuple):
    """A text or a pair of texts, with its class or its number."""

    first: str
    second: str | None
    label: str


@dataclass(frozen=True)
class Columns:
    """Where the published files of a task hold what: names of columns, several where files differ."""

    first: tuple[str, ...]
    second: tuple[str, ...] = ()
    label: tuple[str, ...] = ("label",)
    without_names: tuple[str, ...] = ()
    """Names for the columns of files that have no line of names."""
    short_rows: bool = False
    """The official files have rows with too few columns: skipped and counted."""


class Classification(Task):
    """A task over texts or pairs of texts: transformers' sequence classification head."""

    kind = "SequenceClassification"

    def __init__(
        self,
        name: str,
        folder: str,
        measured: tuple[str, ...],
        columns: Columns,
        labels: tuple[str, ...] = (),
        scored: tuple[str, ...] = ("dev",),
        unlabelled: str = "",
    ) -> None:
        """`measured`: metrics, the one that the task is known by first. `labels`: empty for a number. `scored`: files
        without .tsv. `unlabelled`: a label that stands for none; such rows are skipped and counted (SNLI)."""
        super().__init__(name, folder, measured[0])
        self.measured, self.columns, self.labels = measured, columns, labels
        self.scored, self.unlabelled = scored, unlabelled

    def read(self, folder: Path, settings: EvaluationSettings) -> TaskData:
        """Read train.tsv and the scored files; see Task.read."""
        paths = [folder / f"{name}.tsv" for name in ("train", *self.scored)]
        splits = [self._split(path) for path in paths[1:]]
        notes = [f"{s.name}: {s.skipped} malformed rows skipped" for s in splits if s.skipped]
        train = self._split(paths[0]) if paths[0].is_file() else None
        notes += [f"train: {train.skipped} malformed rows skipped"] if train and train.skipped else []
        train, splits[0], carved = with_training(train, splits[0], paths[0], settings)
        return TaskData(train, tuple(splits), self.labels, hashes(paths), (*notes, *carved))

    def _split(self, path: Path) -> Split:
        names = list(self.columns.without_names) or None
        rows, skipped = read_tsv(path, names, self.columns.short_rows)
        items = list(text_items(rows, path, self.columns))
        kept = [item for item in items if not self.unlabelled or item.label != self.unlabelled]
        check_labels(kept, self.labels, path)
        return not_empty(Split(path.stem, kept, skipped + len(items) - len(kept)), path)

    def features(self, items: Sequence[TextItem], builder: InputBuilder, data: TaskData) -> list[Feature]:
        """Return one sequence per item; see Task.features."""
        ids = {label: i for i, label in enumerate(data.labels)}
        return [
            Feature(
                (
                    builder.single(item.first)
                    if item.second is None
                    else builder.pair(item.first, item.second),
                ),
                {"labels": ids[item.label] if ids else float(item.label)},
            )
            for item in items
        ]

    def score(
        self,
        items: Sequence[TextItem],
        features: Sequence[Feature],
        answers: list[NDArray[Any]],
        data: TaskData,
    ) -> Scores:
        """Return the task's metrics; see Task.score."""
        rows = np.stack(answers)
        predicted = rows.argmax(-1) if data.labels else rows[:, 0]
        return self._scores(_gold(items, data), predicted)

    def trivial(self, split: Split, data: TaskData) -> Scores:
        """Return the metrics of always the commonest label of this split; of its mean where it is a number."""
        gold = _gold(split.items, data)
        constant = np.bincount(gold).argmax() if data.labels else gold.mean()
        return self._scores(gold, np.full_like(gold, constant))

    def _scores(self, gold: NDArray[Any], predicted: NDArray[Any]) -> Scores:
        return {name: METRICS[name](gold, predicted) for name in self.measured}


class Own(Classification):
    """A user's own files: train and dev, as .tsv with a line of names or .jsonl, one or two columns of text and a
    label. Labels that are all numbers, and more than twenty different ones, are predicted as numbers."""

    MAX_NUMERIC_CLASSES = 20

    def __init__(self) -> None:
        super().__init__("own", ".", ("accuracy",), Columns(()))

    def read(self, folder: Path, settings: EvaluationSettings) -> TaskData:
        """Read the files; see Task.read. `settings` names the columns, or they are found by their usual names."""
        train_path, dev_path = _either(folder, "train"), _either(folder, "dev")
        train, dev = (self._own_split(path, settings) for path in (train_path, dev_path))
        found = sorted({item.label for item in train.items})
        is_regression = all(_is_number(text) for text in found) and len(found) > self.MAX_NUMERIC_CLASSES
        labels = () if is_regression else tuple(found)
        check_labels(dev.items, labels, dev_path)
        self.measured = ("pearson", "spearman") if is_regression else ("accuracy",)
        self.headline = self.measured[0]
        return TaskData(train, (dev,), labels, hashes([train_path, dev_path]))

    def _own_split(self, path: Path, settings: EvaluationSettings) -> Split:
        rows = read_json_lines(path) if path.suffix == ".jsonl" else read_tsv(path)[0]
        seconds = [settings.second_text] if settings.second_text else ["text2", "sentence2", "hypothesis"]
        has_second = bool(settings.second_text) or any(name in rows[0] for name in seconds if rows)
        columns = Columns(
            (settings.text,) if settings.text else ("text", "sentence", "sentence1", "premise"),
            tuple(seconds) if has_second else (),
            (settings.label,) if settings.label else ("label", "score", "target"),
        )
        return not_empty(Split(path.stem, list(text_items(rows, path, columns))), path)


def text_items(rows: list[Row], path: Path, columns: Columns) -> list[TextItem]:
    """Return the items of a file's rows. Raises UserError for a column that is not there."""
    first = column(rows, list(columns.first), path)
    second = column(rows, list(columns.second), path) if columns.second else [None] * len(rows)
    label = column(rows, list(columns.label), path)
    return [TextItem(*cells) for cells in zip(first, second, label, strict=True)]


def check_labels(items: Sequence[TextItem], labels: tuple[str, ...], path: Path) -> None:
    """Raise UserError at the first item whose label is not one of `labels`, or no number where there are none."""
    for number, item in enumerate(items, 1):
        if item.label not in labels if labels else not _is_number(item.label):
            expected = f"one of {', '.join(labels)}" if labels else "a number"
            raise UserError(f"example {number} has the label {item.label!r}", where=path, expected=expected)


def _gold(items: Sequence[TextItem], data: TaskData) -> NDArray[Any]:
    ids = {label: i for i, label in enumerate(data.labels)}
    return np.array([ids[item.label] if ids else float(item.label) for item in items])


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _either(folder: Path, name: str) -> Path:
    for suffix in (".tsv", ".jsonl"):
        if (path := folder / f"{name}{suffix}").is_file():
            return path
    raise UserError(f"has no {name}.tsv and no {name}.jsonl", where=folder)
