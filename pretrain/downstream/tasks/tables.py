"""Read rows of tab-separated files and JSON lines, with the number of the line in every message."""

import json
from collections.abc import Iterator
from pathlib import Path

from data_pipeline.errors import UserError

Row = dict[str, str]


def read_lines(path: Path) -> list[str]:
    """Return the lines of a UTF-8 file without a byte order mark. Only a line feed ends one: texts hold other
    separators. Raises UserError for a file that is missing or not UTF-8."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise UserError("no such file", where=path) from None
    except UnicodeDecodeError as error:
        raise UserError(f"is not UTF-8: {error.reason} at byte {error.start}", where=path) from None
    lines = text.split("\n")
    return [line.removesuffix("\r") for line in (lines[:-1] if not lines[-1] else lines)]


def read_tsv(path: Path, columns: list[str] | None = None, short_rows: bool = False) -> tuple[list[Row], int]:
    """Return the rows of a tab-separated file, where quotes are characters like any other, and how many were skipped.
    `columns`: their names in a file without a first line of names. A row with another number of columns than there are
    names is an error, or skipped and counted with `short_rows`: the official files of QQP have some."""
    lines = read_lines(path)
    if columns is None:
        if not lines:
            raise UserError("is empty", where=path, expected="a line with the names of the columns")
        columns, lines = lines[0].split("\t"), lines[1:]
        first = 2
    else:
        first = 1
    rows, skipped = [], 0
    for number, line in enumerate(lines, first):
        cells = line.split("\t")
        if len(cells) == len(columns):
            rows.append(dict(zip(columns, cells, strict=True)))
        elif short_rows:
            skipped += 1
        elif line:
            raise UserError(
                f"has {len(cells)} columns", where=f"{path}, line {number}", expected=f"{len(columns)}"
            )
    return rows, skipped


def read_json_lines(path: Path) -> list[Row]:
    """Return the objects of a JSON lines file, their values as texts."""
    rows = []
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise UserError("is no JSON object", where=f"{path}, line {number}")
        rows.append({str(key): _text(value) for key, value in row.items()})
    return rows


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def column(rows: list[Row], names: list[str], where: Path) -> Iterator[str]:
    """Yield one column, the first of `names` that the rows have. Raises UserError where they have none of them."""
    first = rows[0] if rows else {}
    name = next((name for name in names if name in first), None)
    if rows and name is None:
        raise UserError(
            f"has no column {' or '.join(names)}", where=where, expected=f"one of {', '.join(first)}"
        )
    for number, row in enumerate(rows, 1):
        if name not in row:
            raise UserError(f"row {number} has no {name}", where=where)
        yield row[name]
