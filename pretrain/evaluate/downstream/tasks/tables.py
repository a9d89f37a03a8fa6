"""Read rows of tab-separated files and JSON lines, with the number of the line in every message, and write such lines
of predictions."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_pipeline.errors import UserError

Row = dict[str, str]
EXACT = 2**53
"""Below this every whole number is a float."""
SHOWN = 10
"""Names listed in a message."""
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
ESCAPES = re.compile(r"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|(?P<half>\\u[dD][89a-fA-F]..)|\\.", re.DOTALL)
"""Escape sequences of JSON: two halves of a surrogate pair, one half, any other."""


@dataclass(frozen=True)
class Table:
    """The rows of a file, each with the number of its line."""

    path: Path
    rows: list[Row]
    lines: list[int]
    skipped: int = 0
    """Lines between rows that are no row: empty, or too short where the official file has such."""

    def column(self, names: Sequence[str], remedy: str = "") -> Iterator[str]:
        """Yield one column: of the first row that has any of `names` the first of these. Raises UserError where no row
        has one of them, or a row has no value."""
        first = self.rows[0] if self.rows else {}
        name = next((name for row in self.rows for name in names if name in row), None)
        if self.rows and name is None:
            raise UserError(
                f"has no column {' or '.join(names)}",
                where=at_line(self.path, self.lines[0]),
                expected=f"one of {some(list(first))}",
                remedy=remedy,
            )
        for line, row in zip(self.lines, self.rows, strict=True):
            if name not in row:
                raise UserError(
                    f"has no {name}", where=at_line(self.path, line), expected="a text or a number"
                )
            yield row[name]


def at_line(path: Path, line: int) -> str:
    """Return where a message points to."""
    return f"{path}, line {line}"


def some(names: Sequence[str]) -> str:
    """Return names in a list that is not too long to be read.

    >>> some(["0", "1"]), some("abcdefghijklm")
    ('0, 1', 'a, b, c, d, e, f, g, h, i, j and 3 more')
    """
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def read_text(path: Path) -> str:
    """Return what a UTF-8 file holds, without a byte order mark. Raises UserError for a file that is missing or not
    UTF-8."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise UserError(
            "no such file", where=path, remedy="--data names the folder with the task's files"
        ) from None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"is not UTF-8: {error.reason} at byte {error.start}",
            where=at_line(path, line),
            remedy="convert the file to UTF-8",
        ) from None


def read_lines(path: Path) -> list[str]:
    """Return the lines of a UTF-8 file. Only a line feed ends one: texts hold other separators. Raises UserError as
    `read_text` does."""
    lines = read_text(path).split("\n")
    return [line.removesuffix("\r") for line in (lines[:-1] if not lines[-1] else lines)]


def parsed_json(text: str, path: Path, line: int = 1) -> Any:
    """Return the value of a JSON text that begins at this line of a file. Raises ValueError and RecursionError as
    json.loads does, and UserError for half a surrogate pair: it is no character, and no tokenizer takes it."""
    value = json.loads(text)
    for found in ESCAPES.finditer(text) if SURROGATE.search(text) else ():
        if found["half"]:
            raise UserError(
                f"has {found['half']}, half of a character",
                where=at_line(path, line + text.count("\n", 0, found.start())),
                expected=r"both halves, as \ud83d\ude00",
                remedy="remove it: the text was cut there",
            )
    return value


def read_tsv(path: Path, columns: list[str] | None = None, short_rows: bool = False) -> Table:
    """Return the rows of a tab-separated file, where quotes are characters like any other. `columns`: their names in a
    file without a first line of names. A row with another number of columns than there are names is an error; with
    `short_rows` one with fewer is skipped and counted: the official files of QQP have some. Empty lines between rows
    are skipped and counted."""
    lines = read_lines(path)
    while lines and not lines[-1]:
        lines.pop()
    if columns is None:
        if not lines:
            raise UserError("is empty", where=path, expected="a line with the names of the columns")
        columns, lines = _distinct(lines[0].split("\t"), path), lines[1:]
        first = 2
    else:
        first = 1
    rows, numbers, skipped = [], [], 0
    for number, line in enumerate(lines, first):
        cells = line.split("\t")
        if len(cells) == len(columns):
            rows.append(dict(zip(columns, cells, strict=True)))
            numbers.append(number)
        elif not line or (short_rows and len(cells) < len(columns)):
            skipped += 1
        else:
            raise UserError(
                f"has {len(cells)} columns",
                where=at_line(path, number),
                expected=f"{len(columns)}, separated by tabs: {some(columns)}",
            )
    return Table(path, rows, numbers, skipped)


def _distinct(names: list[str], path: Path) -> list[str]:
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise UserError(
            f"has several columns of the same name: {some(twice)}",
            where=at_line(path, 1),
            remedy="rename all but one",
        )
    return names


def read_json_lines(path: Path) -> Table:
    """Return the objects of a JSON lines file, their texts, numbers and truth values as texts, 1.0 as 1; null, lists,
    objects, and what JSON has no number for (NaN, Infinity) are no values. Empty lines between rows are skipped and
    counted."""
    lines = read_lines(path)
    while lines and not lines[-1].strip():
        lines.pop()
    rows, numbers = [], []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = parsed_json(line, path, number)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise UserError("is no JSON object", where=at_line(path, number), expected='{"text": ..., ...}')
        rows.append({str(key): _text(value) for key, value in row.items() if _is_value(value)})
        numbers.append(number)
    return Table(path, rows, numbers, len(lines) - len(rows))


def predicted_lines(labels: Sequence[Any], predicted: Sequence[Any]) -> dict[str, str]:
    """Return a file of JSON lines, an object for each example in its order, and under which name.

    >>> predicted_lines(["yes"], ["no"])
    {'predictions.jsonl': '{"index": 0, "label": "yes", "predicted": "no"}\\n'}
    """
    rows = [
        {"index": i, "label": label, "predicted": said}
        for i, (label, said) in enumerate(zip(labels, predicted, strict=True))
    ]
    return {"predictions.jsonl": "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)}


def _is_value(value: Any) -> bool:
    return isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))


def _text(value: Any) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < EXACT:
        value = int(value)  # 1 and 1.0 are one number, and one label
    return value if isinstance(value, str) else json.dumps(value)
