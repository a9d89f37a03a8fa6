"""Read what can be read of a run folder's files; nothing here raises for a file that is torn or missing."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from pretrain.config.safe_yaml import load_yaml

WRONG = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)


class SavedCheckpoint(NamedTuple):
    """A whole checkpoint of the run: where, at which step, how large, and how good."""

    name: str
    step: int
    bytes: int
    held_out_loss: float | None = None
    conditions: dict[str, Any] = {}  # noqa: RUF012 (a NamedTuple's default, never changed)
    """Under which a continuation is bit-equal."""


def read(path: Path, reader: Callable[[Path], Any], fallback: Any, complaints: list[str]) -> Any:
    """What `reader` makes of the file; `fallback`, with a complaint, where it cannot be read."""
    if not path.is_file():
        complaints.append(f"{path.name} is missing.")
        return fallback
    try:
        value = reader(path)
    except (OSError, ValueError, RecursionError, YAMLError, OmegaConfBaseException) as error:
        reason = " ".join(str(error).split())[:160]
        complaints.append(f"{path.name} cannot be read ({type(error).__name__}: {reason}).")
        return fallback
    if not isinstance(value, type(fallback)):
        complaints.append(f"{path.name} holds no table of names and values.")
        return fallback
    return value


def read_json(path: Path) -> Any:
    """The JSON in `path`."""
    return json.loads(path.read_text(encoding="utf-8"))


def read_yaml(path: Path) -> Any:
    """The YAML in `path`, unresolved on purpose: an interpolation may name an environment variable, which has no place
    on a page."""
    return OmegaConf.to_container(load_yaml(path), resolve=False)


def read_checkpoints(folder: Path) -> list[SavedCheckpoint]:
    """Checkpoints whose marker is there, oldest first. Sizes are the marker's; nothing else is opened."""
    found = []
    for marker in (folder / "checkpoints").glob("*/checkpoint.json"):
        if marker.parent.suffix in (".partial", ".damaged"):  # a save under way, or one that was set aside
            continue
        try:
            found.append(_checkpoint(marker.parent.name, read_json(marker)))
        except WRONG:
            continue
    return sorted(found, key=lambda checkpoint: (checkpoint.step, checkpoint.name))


def _checkpoint(name: str, values: dict[str, Any]) -> SavedCheckpoint:
    sizes = [int(entry["bytes"]) for entry in values["files"]]
    state = values.get("state")
    state = state if isinstance(state, dict) else {}
    loss, conditions = state.get("held_out_loss"), state.get("conditions")
    return SavedCheckpoint(
        name,
        int(values["step"]),
        sum(sizes),
        float(loss) if isinstance(loss, int | float) else None,
        conditions if isinstance(conditions, dict) else {},
    )
