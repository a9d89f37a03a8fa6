"""Classify the texts of a user's own files, or predict a number for them."""

from collections.abc import Sequence
from pathlib import Path

from data_pipeline.errors import UserError
from pretrain.evaluate.downstream.settings import EvaluationSettings
from pretrain.evaluate.downstream.tasks.base import TaskData
from pretrain.evaluate.downstream.tasks.fine_tuned.classification import Classification
from pretrain.evaluate.downstream.tasks.fine_tuned.labelled_texts import (
    Columns,
    TextItem,
    check_labels,
    is_not_finite,
    is_number,
    skip_notes,
    text_items,
)
from pretrain.evaluate.downstream.tasks.splits import SPLITS, Split, hashes, not_empty
from pretrain.evaluate.downstream.tasks.tables import Table, at_line, read_json_lines, read_tsv

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
