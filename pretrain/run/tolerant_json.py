"""Read what can be read of a file that may be missing, torn or no JSON at all. Nothing here raises.

For whoever looks at a run from outside: it may be writing, or may have been killed while it wrote.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def text_of(path: Path, last: int | None = None) -> str:
    """The text in `path`, or of its last bytes alone; empty where it cannot be read."""
    try:
        with path.open("rb") as file:
            if last is not None:
                file.seek(max(0, file.seek(0, 2) - last))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def table(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; empty where there is none."""
    values = _parsed(text_of(path))
    return values if isinstance(values, dict) else {}


def tables(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects of a text that has one a line; other lines, torn ones among them, have none."""
    for line in text.splitlines():
        if isinstance(values := _parsed(line), dict):
            yield values


def objects(value: object) -> list[dict[str, Any]]:
    """The JSON objects among the entries of a list; none where it is no list."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def number(value: object) -> float | None:
    """It, if it is a number that one can reckon with."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e100
    return float(value) if good else None  # type: ignore[arg-type]


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
