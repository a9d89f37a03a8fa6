"""Read run-folder files that may be missing, torn or malformed.

For observers of a run: it may be writing, or may have been killed while it wrote. Only the reader `read_json`
raises.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from data_pipeline.errors import UserError

LARGEST = 2.0**62
"""Numbers at or above it are treated as damage: they overflow later computations."""


class SavedCheckpoint(NamedTuple):
    """A complete checkpoint of the run: its path, step, size and quality."""

    name: str
    step: int
    bytes: int
    held_out_loss: float | None = None
    conditions: dict[str, Any] = {}  # noqa: RUF012 (a NamedTuple's default, never changed)
    """Settings under which a resumed run is bit-exact."""


def text_of(path: Path, last: int | None = None) -> str:
    """Read the text in `path`, or only its `last` bytes; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            if last is not None:
                file.seek(max(0, file.seek(0, 2) - last))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def table(path: Path) -> dict[str, Any]:
    """Read the JSON object in `path`; empty if there is none."""
    return object_of(text_of(path)) or {}


def tables(text: str) -> Iterator[dict[str, Any]]:
    """Parse the JSON objects of a text with one per line; other lines, including torn ones, are skipped."""
    for line in text.splitlines():
        if (values := object_of(line)) is not None:
            yield values


def object_of(text: str | bytes) -> dict[str, Any] | None:
    """Parse a text as a JSON object; None if it is something else."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def objects(value: object) -> list[dict[str, Any]]:
    """Return the JSON objects among the entries of a list; empty if it is not a list."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def number(value: object) -> float | None:
    """Return `value` if it is a number below LARGEST, else None, as for NaN and infinity."""
    return float(value) if is_number(value) else None  # type: ignore[arg-type]


def is_number(value: object) -> bool:
    """Return whether `value` is a number that is neither NaN nor beyond LARGEST."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST


def is_count(value: object) -> bool:
    """Return whether `value` is an integer from 0 to LARGEST."""
    return type(value) is int and 0 <= value < LARGEST


def read(path: Path, reader: Callable[[Path], Any], fallback: Any, complaints: list[str]) -> Any:
    """Return the result of `reader` on the file; `fallback`, with a complaint, if it cannot be read."""
    if not path.is_file():
        complaints.append(f"{path.name} is missing.")
        return fallback
    try:
        value = reader(path)
    except UserError as error:
        complaints.append(f"{path.name} cannot be read: {error.what}.")
        return fallback
    except (OSError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:160]
        complaints.append(f"{path.name} cannot be read ({type(error).__name__}: {reason}).")
        return fallback
    if not isinstance(value, type(fallback)):
        complaints.append(f"{path.name} holds no table of names and values.")
        return fallback
    return value


def read_json(path: Path) -> Any:
    """Read the JSON in `path`. Raises what json raises: for `read`."""
    return json.loads(path.read_text(encoding="utf-8"))


def read_checkpoints(folder: Path) -> list[SavedCheckpoint]:
    """List the complete checkpoints of a run, oldest first, from their markers alone."""
    found = []
    for marker in (folder / "checkpoints").glob("*/checkpoint.json"):
        if marker.parent.suffix in (".partial", ".damaged"):  # a save in progress, or one that was set aside
            continue
        values = table(marker)
        try:
            found.append(_checkpoint(marker.parent.name, values))
        except (ValueError, KeyError, TypeError):
            continue
    return sorted(found, key=lambda checkpoint: (checkpoint.step, checkpoint.name))


def _checkpoint(name: str, values: dict[str, Any]) -> SavedCheckpoint:
    sizes = [int(entry["bytes"]) for entry in values["files"]]
    state = values.get("state")
    state = state if isinstance(state, dict) else {}
    conditions = state.get("conditions")
    return SavedCheckpoint(
        name,
        int(values["step"]),
        sum(sizes),
        number(state.get("held_out_loss")),
        conditions if isinstance(conditions, dict) else {},
    )
