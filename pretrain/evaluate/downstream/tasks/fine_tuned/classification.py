"""Classify texts and pairs of texts, or predict a number for them: GLUE and SNLI.

GLUE: Wang et al. 2019; the files are read as they were published, quirks included."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from data_pipeline.errors import UserError
from pretrain.evaluate.downstream import metrics
from pretrain.evaluate.downstream.encoders import Encoder
from pretrain.evaluate.downstream.heads.saved import HEAD_FILE, LABELS, labels_beside
from pretrain.evaluate.downstream.heads.text_classifier import TextClassifier
from pretrain.evaluate.downstream.inputs.builder import InputBuilder
from pretrain.evaluate.downstream.settings import EvaluationSettings
from pretrain.evaluate.downstream.tasks.base import Feature, Scores, Task, TaskData, with_dropout
from pretrain.evaluate.downstream.tasks.class_names import better_order
from pretrain.evaluate.downstream.tasks.fine_tuned.labelled_texts import (
    Columns,
    TextItem,
    check_labels,
    skip_notes,
    text_items,
)
from pretrain.evaluate.downstream.tasks.splits import Split, hashes, not_empty, with_training
from pretrain.evaluate.downstream.tasks.tables import predicted_lines, read_tsv

METRICS: dict[str, Callable[[NDArray[Any], NDArray[Any]], float]] = {
    "accuracy": metrics.accuracy,
    "f1": metrics.f1,
    "matthews": metrics.matthews,
    "pearson": metrics.pearson,
    "spearman": metrics.spearman,
}
POSITIVE = "1"
"""The label whose F1 is measured (MRPC, QQP)."""


class Classification(Task):
    """A task over texts or pairs of texts: transformers' sequence classification head, which its own pipeline reads in
    the same way. Other than there, what is longer than max_length is cut, a pair at the end of the longer text."""

    kind = "SequenceClassification"
    head_settings = ("bilstm",)
    file_settings: tuple[str, ...] = ("carve",)

    def __init__(
        self,
        name: str,
        folder: str,
        measured: tuple[str, ...],
        columns: Columns,
        labels: tuple[str, ...] = (),
        scored: tuple[str, ...] = ("dev",),
        unlabelled: str = "",
        where_absent: str = "",
        other_name: str = "{}.tsv",
        has_test: bool = False,
        is_trained: bool = True,
    ) -> None:
        """`measured`: metrics, the one that the task is known by first. `labels`: empty for a number. `scored`: files
        without .tsv. `unlabelled`: a label that stands for none; such rows are skipped and counted (SNLI).
        `where_absent`: what to do without a scored file. `other_name`: that of files that are published under two, with
        {} for train or dev. `has_test`: a test file is published with labels. `is_trained`: False where there are no
        training examples, so that a model of another task is scored."""
        super().__init__(name, folder, measured[0])
        self.measured, self.columns, self.labels = measured, columns, labels
        self.scored, self.unlabelled, self.where_absent = scored, unlabelled, where_absent
        self.other_name, self.has_test, self.is_trained = other_name, has_test, is_trained
        if has_test:
            self.file_settings = (*self.file_settings, "test")
        if labels:
            self.file_settings = (*self.file_settings, "class_order")

    def read(self, folder: Path, settings: EvaluationSettings) -> TaskData:
        """Read train.tsv and the scored files; see Task.read."""
        if not self.is_trained:
            self._refuse_training(settings)
        names = (*self.scored, *(["test"] if settings.test and self.has_test else []))
        paths = [self._path(folder, name) for name in ("train", *names)]
        lacking = next((path for path in paths[1:] if not path.is_file()), None)
        if lacking and self.where_absent:
            raise UserError("no such file", where=lacking, remedy=self.where_absent)
        splits = [self._split(name, path) for name, path in zip(names, paths[1:], strict=True)]
        train = self._split("train", paths[0]) if paths[0].is_file() else None
        notes = skip_notes([*splits, *([train] if train else [])])
        train, splits[0], carved = with_training(train, splits[0], paths[0], settings)
        return TaskData(train, tuple(splits), self.labels, hashes(paths), (*notes, *carved))

    def _refuse_training(self, settings: EvaluationSettings) -> None:
        for name in ("epochs", "tune_share"):
            if value := getattr(settings, name):
                raise UserError(
                    f"{self.name} has no training examples",
                    where=f"{name}={value:g}",
                    expected=f"{name}=0",
                    remedy="score it in a call of its own",
                )

    def _path(self, folder: Path, name: str) -> Path:
        """Return the file of a split, under whichever of its names it is there."""
        other = folder / self.other_name.format(name)
        return other if other.is_file() else folder / f"{name}.tsv"

    def _split(self, name: str, path: Path) -> Split:
        table = read_tsv(path, list(self.columns.without_names) or None, self.columns.short_rows)
        items = text_items(table, self.columns)
        check_labels(items, self.labels, table, self.unlabelled)
        kept = [item for item in items if not self.unlabelled or item.label != self.unlabelled]
        unlabelled = len(items) - len(kept)
        return not_empty(Split(name, kept, table.skipped + unlabelled, unlabelled), path)

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

    def model(self, encoder: Encoder, data: TaskData, seed: int, settings: EvaluationSettings) -> nn.Module:
        """Return the model to train: a TextClassifier with `bilstm` and where a token sees only one side; see
        Task.model."""
        if not (settings.bilstm or encoder.reads_one_way):
            return super().model(encoder, data, seed, settings)
        base = encoder.load("", seed, with_dropout(encoder, settings.dropout))
        return TextClassifier(base, data.labels, settings.dropout, settings.bilstm).eval()

    def finished_model(
        self, encoder: Encoder, data: TaskData, settings: EvaluationSettings
    ) -> tuple[nn.Module, TaskData]:
        """Return the model of a folder that has been fine-tuned already; see Task.finished_model."""
        if not (settings.bilstm or encoder.reads_one_way):
            return super().finished_model(encoder, data, settings)
        path = encoder.folder / HEAD_FILE
        labels = labels_beside(path).get(LABELS, ())
        if bool(labels) != bool(data.labels):
            raise UserError(
                f"classifies as {', '.join(labels[:5]) or 'a number'}",
                where=path,
                expected=", ".join(data.labels[:5]) or "a number",
            )
        self.refuse_order(data, settings)
        model = TextClassifier(encoder.load("", 0), labels, 0, settings.bilstm).load_head(encoder.folder)
        return model.eval(), self.with_outputs(data, labels, settings, path) if labels else data

    def score(
        self,
        items: Sequence[TextItem],
        features: Sequence[Feature],
        answers: list[NDArray[Any]],
        data: TaskData,
    ) -> Scores:
        """Return the task's metrics; see Task.score."""
        return self._scores(_gold(items, data), _predicted(answers, data), data)

    def predictions(
        self,
        items: Sequence[TextItem],
        features: Sequence[Feature],
        answers: list[NDArray[Any]],
        data: TaskData,
    ) -> dict[str, str]:
        """Return a file of each text's label and the predicted one; see Task.predictions."""
        said = _predicted(answers, data).tolist()
        named = [data.labels[i] for i in said] if data.labels else said
        return predicted_lines([item.label if data.labels else float(item.label) for item in items], named)

    def is_constant(self, answers: list[NDArray[Any]], data: TaskData) -> bool:
        """Return whether several texts have one and the same prediction; see Task.is_constant."""
        return len(answers) > 1 and not np.ptp(_predicted(answers, data))

    def remark(
        self,
        items: Sequence[TextItem],
        features: Sequence[Feature],
        answers: list[NDArray[Any]],
        data: TaskData,
    ) -> str:
        """Return which order of the outputs scores more than the assumed one, if one does; see Task.remark."""
        if not data.is_assumed:
            return ""
        headline = self.headline_of(data)
        better = better_order(
            data.labels,
            lambda order: self.score(items, features, answers, replace(data, labels=order))[headline],
        )
        if better is None:
            return ""
        order, found = better
        return (
            f"read as {', '.join(order)}, they have {headline} {found:.1f}: class_order=[{','.join(order)}]"
        )

    def trivial(self, split: Split, data: TaskData) -> Scores:
        """Return of each metric the best that always the same label has, which for F1 is not always the commonest one;
        those of the mean where it is a number."""
        gold = _gold(split.items, data)
        constants = range(len(data.labels)) if data.labels else [gold.mean()]
        found = [self._scores(gold, np.full_like(gold, constant), data) for constant in constants]
        return {name: max(scores[name] for scores in found) for name in found[0]}

    def _scores(self, gold: NDArray[Any], predicted: NDArray[Any], data: TaskData) -> Scores:
        """Return the metrics of ids, or of numbers. A finished model has ids of its own: F1 is of the label POSITIVE,
        whatever its id."""
        pairs = dict.fromkeys(data.measured or self.measured, (gold, predicted))
        if "f1" in pairs:
            positive = data.labels.index(POSITIVE)
            pairs["f1"] = gold == positive, predicted == positive
        return {name: METRICS[name](*pair) for name, pair in pairs.items()}


def _predicted(answers: list[NDArray[Any]], data: TaskData) -> NDArray[Any]:
    rows = np.stack(answers)
    return rows.argmax(-1) if data.labels else rows[:, 0]


def _gold(items: Sequence[TextItem], data: TaskData) -> NDArray[Any]:
    ids = {label: i for i, label in enumerate(data.labels)}
    return np.array([ids[item.label] if ids else float(item.label) for item in items])
