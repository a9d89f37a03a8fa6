"""Read texts and pairs of texts with their labels from the rows of a file."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from data_pipeline.errors import UserError
from pretrain.evaluate.downstream.tasks.splits import Split
from pretrain.evaluate.downstream.tasks.tables import Table, at_line, some


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
