"""Classify texts and pairs of texts, or predict a number for them: GLUE, SNLI and a user's own files.

GLUE: Wang et al. 2019; SNLI: Bowman et al. 2015. Their files are read as they were published, quirks included.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import nn

from data_pipeline.errors import UserError
from pretrain.tasks import metrics
from pretrain.tasks.base import ModelAnswers, Scores, Task, TaskData, with_dropout
from pretrain.tasks.class_names import better_order
from pretrain.tasks.encoders import Encoder
from pretrain.tasks.files import (
    SPLITS,
    Split,
    Table,
    at_line,
    hashes,
    not_empty,
    predicted_lines,
    read_json_lines,
    read_tsv,
    some,
    with_training,
)
from pretrain.tasks.heads import HEAD_FILE, LABELS, TextClassifier, labels_beside
from pretrain.tasks.inputs import Feature, InputBuilder
from pretrain.tasks.settings import EvaluationSettings

# Read texts and pairs of texts with their labels from the rows of a file.


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


def text_items(table: Table, columns: Columns, remedy: str = "") -> list[TextItem]:
    """Return the items of a file's rows. Raises UserError for a column that is not there."""
    first = table.column(columns.first, remedy)
    second = table.column(columns.second, remedy) if columns.second else [None] * len(table.rows)
    label = table.column(columns.label, remedy)
    return [TextItem(*cells) for cells in zip(first, second, label, strict=True)]


def check_labels(
    items: Sequence[TextItem], labels: tuple[str, ...], table: Table, unlabelled: str = ""
) -> None:
    """Raise UserError at the first item whose label is neither one of `labels`, or a number where there are none, nor
    `unlabelled`."""
    for line, item in zip(table.lines, items, strict=True):
        fits = item.label in labels if labels else is_number(item.label)
        if not fits and not (unlabelled and item.label == unlabelled):
            expected = f"one of {some(labels)}" if labels else "a number"
            raise UserError(
                f"has the label {item.label!r}", where=at_line(table.path, line), expected=expected
            )


def skip_notes(splits: Sequence[Split]) -> list[str]:
    """Return what a reader of the scores must know of rows that were left out."""
    counts = [
        (split.name, count, what)
        for split in splits
        for count, what in (
            (split.skipped - split.unlabelled, "malformed rows"),
            (split.unlabelled, "rows without a label"),
        )
    ]
    return [f"{name}: {count} {what} skipped" for name, count, what in counts if count]


def is_number(text: str) -> bool:
    """Return whether a label is a finite number."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def is_not_finite(text: str) -> bool:
    """Return whether a label is infinite or no number, and says so as floats do: inf, NaN."""
    try:
        return not math.isfinite(float(text))
    except ValueError:
        return False


# Fine-tune a classifier or a regression of texts, and score it.


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

    def score(self, answered: ModelAnswers) -> Scores:
        """Return the task's metrics; see Task.score."""
        return self._scores(_gold(answered.items, answered.data), _predicted(answered), answered.data)

    def predictions(self, answered: ModelAnswers) -> dict[str, str]:
        """Return a file of each text's label and the predicted one; see Task.predictions."""
        predicted, labels = _predicted(answered).tolist(), answered.data.labels
        named = [labels[i] for i in predicted] if labels else predicted
        return predicted_lines(
            [item.label if labels else float(item.label) for item in answered.items], named
        )

    def is_constant(self, answered: ModelAnswers) -> bool:
        """Return whether several texts have one and the same prediction; see Task.is_constant."""
        return len(answered.answers) > 1 and not np.ptp(_predicted(answered))

    def note(self, answered: ModelAnswers) -> str:
        """Return which order of the outputs scores more than the assumed one, if one does; see Task.note."""
        data = answered.data
        if not data.is_assumed:
            return ""
        headline = self.headline_of(data)
        better = better_order(
            data.labels,
            lambda order: self.score(replace(answered, data=replace(data, labels=order)))[headline],
        )
        if better is None:
            return ""
        order, found = better
        return (
            f"read as {', '.join(order)}, they have {headline} {found:.1f}: class_order=[{','.join(order)}]"
        )

    def baseline(self, split: Split, data: TaskData) -> Scores:
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


def _predicted(answered: ModelAnswers) -> NDArray[Any]:
    rows = np.stack(answered.answers)
    return rows.argmax(-1) if answered.data.labels else rows[:, 0]


def _gold(items: Sequence[TextItem], data: TaskData) -> NDArray[Any]:
    ids = {label: i for i, label in enumerate(data.labels)}
    return np.array([ids[item.label] if ids else float(item.label) for item in items])


# List the tasks of GLUE and SNLI: their files, labels and metrics.


PAIR = Columns(("sentence1",), ("sentence2",))
BINARY = ("0", "1")
ENTAILMENT = ("entailment", "not_entailment")
NLI = ("contradiction", "entailment", "neutral")
GOLD = Columns(("sentence1",), ("sentence2",), ("gold_label",))

GLUE = [
    Classification(
        "cola",
        "CoLA",
        ("matthews", "accuracy"),
        Columns(("sentence",), without_names=("source", "label", "original", "sentence")),
        BINARY,
    ),
    Classification("sst2", "SST-2", ("accuracy",), Columns(("sentence",)), BINARY),
    Classification(
        "mrpc",
        "MRPC",
        ("f1", "accuracy"),
        Columns(("#1 String",), ("#2 String",), ("Quality",)),
        BINARY,
    ),
    Classification(
        "qqp",
        "QQP",
        ("f1", "accuracy"),
        Columns(("question1",), ("question2",), ("is_duplicate",), short_rows=True),
        BINARY,
    ),
    Classification(
        "stsb", "STS-B", ("pearson", "spearman"), Columns(("sentence1",), ("sentence2",), ("score",))
    ),
    Classification("mnli", "MNLI", ("accuracy",), GOLD, NLI, ("dev_matched", "dev_mismatched")),
    Classification("qnli", "QNLI", ("accuracy",), Columns(("question",), ("sentence",)), ENTAILMENT),
    Classification("rte", "RTE", ("accuracy",), PAIR, ENTAILMENT),
    Classification("wnli", "WNLI", ("accuracy",), PAIR, BINARY),
    Classification(
        "ax",
        "AX",
        ("matthews", "accuracy"),
        Columns(("Premise",), ("Hypothesis",), ("Label",)),
        NLI,
        ("diagnostic-full",),
        where_absent="put it there from GLUE's page: diagnostic.tsv, for its server, has no labels",
        is_trained=False,
    ),
    Classification(
        "snli", "SNLI", ("accuracy",), GOLD, NLI, unlabelled="-", other_name="snli_1.0_{}.txt", has_test=True
    ),
]
SUITE = ("cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "qnli", "rte")
"""GLUE without WNLI, which BERT and most later work leave out: its dev examples recur in train with the other label."""


# Read a user's own files: which columns hold what, and whether labels are classes or numbers.


SECONDS = ("text2", "sentence2", "hypothesis")
"""Usual names of the column of a second text."""
NAMED = "text=, second_text= and label= name the columns"


class Own(Classification):
    """A user's own files: train and dev, and test if it is asked for, as .tsv with a line of names or .jsonl, one or
    two columns of text and a label. Labels that are all numbers, and more than twenty different ones, are predicted as
    numbers, unless settings.labels says what they are."""

    MAX_NUMERIC_CLASSES = 20
    file_settings = ("text", "second_text", "label", "labels", "test", "class_order")

    def __init__(self) -> None:
        super().__init__("own", ".", ("accuracy",), Columns(()))

    def read(self, folder: Path, settings: EvaluationSettings) -> TaskData:
        """Read the files; see Task.read. `settings` names the columns, or they are found by their usual names."""
        names = SPLITS[: 2 + settings.test]
        paths = [_either(folder, name) for name in names]
        tables = [_own_table(path) for path in paths]
        columns = _own_columns(settings, tables)
        items = [text_items(table, columns, NAMED) for table in tables]
        for of_file, table in zip(items, tables, strict=True):
            _refuse_blanks(of_file, table)
        splits = [
            not_empty(Split(name, found, table.skipped), table.path)
            for name, found, table in zip(names, items, tables, strict=True)
        ]
        found = sorted({item.label for item in items[0]})
        is_regression = settings.labels == "numbers" or (
            settings.labels == "auto"
            and all(is_number(text) for text in found)
            and len(found) > self.MAX_NUMERIC_CLASSES
        )
        labels = () if is_regression else tuple(found)
        for of_file, table in zip(items, tables, strict=True):
            check_labels(of_file, labels, table)
        measured = ("pearson", "spearman") if is_regression else ("accuracy",)
        notes = tuple(skip_notes(splits))
        return TaskData(splits[0], tuple(splits[1:]), labels, hashes(paths), notes, measured=measured)


def _refuse_blanks(items: Sequence[TextItem], table: Table) -> None:
    """Raise UserError at the first item whose label is empty or no finite number, which is how programs write that
    there is none: it would be a class of its own, and no label beside it a number."""
    for line, item in zip(table.lines, items, strict=True):
        if not item.label.strip() or is_not_finite(item.label):
            raise UserError(
                f"has the label {item.label!r}",
                where=at_line(table.path, line),
                expected="a finite number, or the name of a class",
                remedy="remove rows without a label",
            )


def _own_table(path: Path) -> Table:
    return read_json_lines(path) if path.suffix == ".jsonl" else read_tsv(path)


def _own_columns(settings: EvaluationSettings, tables: Sequence[Table]) -> Columns:
    """Return the columns that the settings name, or those of the usual names. Where any row of any file has a second
    text, all must have one."""
    has_second = any(name in row for table in tables for row in table.rows for name in SECONDS)
    return Columns(
        (settings.text,) if settings.text else ("text", "sentence", "sentence1", "premise"),
        (settings.second_text,) if settings.second_text else SECONDS if has_second else (),
        (settings.label,) if settings.label else ("label", "score", "target"),
    )


def _either(folder: Path, name: str) -> Path:
    for suffix in (".tsv", ".jsonl"):
        if (path := folder / f"{name}{suffix}").is_file():
            return path
    raise UserError(
        f"has no {name}.tsv and no {name}.jsonl",
        where=folder,
        expected="a file for each split, tab-separated with a line of names, or JSON lines",
    )
