"""A run folder in, a RunRecord out: metrics by name, final numbers, settings, checkpoints.

Read from files alone, so that it works while the run goes on, after a kill, and on another machine.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from data_pipeline.errors import UserError
from pretrain.bounded_yaml import load_yaml
from pretrain.monitor import METRICS, TRUST, read_metrics

SUMMARY, CONFIG, RUN = "summary.json", "config.yaml", "run.json"


class Points(NamedTuple):
    """One metric over the steps at which it was logged; a value that is not finite is NaN."""

    steps: NDArray[np.float64]
    values: NDArray[np.float64]


class SavedCheckpoint(NamedTuple):
    """A whole checkpoint of the run: where, at which step, how large, how many files."""

    name: str
    step: int
    bytes: int
    files: int


@dataclass(frozen=True)
class RunRecord:
    """What the report knows about a run."""

    folder: Path
    train: dict[str, Points]  # by metric name, from lines of kind `train`
    held_out: dict[str, Points]  # the same from lines of kind `eval`
    summary: dict[str, Any]
    config: dict[str, Any]
    lives: int  # how often the run was started: 1 and its resumptions
    checkpoints: list[SavedCheckpoint]
    complaints: list[str]  # files that could not be read, in words

    @property
    def name(self) -> str:
        """The run folder's own name."""
        return self.folder.resolve().name or "run"

    @property
    def status(self) -> str:
        """finished, stopped, failed or running, as the run itself last said; `unknown` where it said nothing."""
        return str(self.summary.get("status") or "unknown")

    @property
    def ended(self) -> bool:
        """Whether the summary is the run's last word."""
        return self.status in ("finished", "stopped", "failed")

    def final(self, name: str) -> float | None:
        """The last finite value of a metric: the summary's where the run has ended, else the newest line's."""
        told = number(self.summary.get(name))
        logged = last(self.held_out.get(name)) if name in self.held_out else last(self.train.get(name))
        first, second = (told, logged) if self.ended else (logged, told)
        return second if first is None else first

    def setting(self, path: str) -> Any:
        """The setting at a dotted path of config.yaml, as it is in the newest phase; None where there is none."""
        own = _at(self._phase(), path)
        return _at(self.config, path) if own is None else own

    def _phase(self) -> Any:
        phases = self.config.get("phases")
        named = phases if isinstance(phases, list) else []
        name = self.summary.get("phase")
        return next((p for p in named if isinstance(p, dict) and p.get("name") == name), None)


def _at(value: Any, path: str) -> Any:
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def read_run(folder: Path) -> RunRecord:
    """Everything the report needs from `folder`. Raises UserError where it is no run."""
    if not any((folder / name).is_file() for name in (METRICS, SUMMARY, CONFIG)):
        raise UserError(
            "not a run" if folder.is_dir() else "no such folder",
            where=folder,
            expected=f"a run folder with {METRICS}, {SUMMARY} or {CONFIG}",
            remedy="give the folder that `run.dir` named",
        )
    complaints: list[str] = []
    lines = _read(folder / METRICS, lambda path: read_metrics(path.parent), [], complaints)
    lines = [line for line in lines if line.get("kind") != TRUST]
    evaluations = [line for line in lines if _is_evaluation(line)]
    return RunRecord(
        folder=folder,
        train=points_by_name([line for line in lines if not _is_evaluation(line)]),
        held_out=points_by_name(evaluations),
        summary=_read(folder / SUMMARY, _read_json, {}, complaints),
        config=_read(folder / CONFIG, _read_yaml, {}, complaints),
        lives=_lives(folder),
        checkpoints=_checkpoints(folder),
        complaints=complaints,
    )


def points_by_name(lines: list[dict[str, Any]]) -> dict[str, Points]:
    """Metric name -> its points in order of step. A step logged twice counts as its later line says."""
    by_step: dict[float, dict[str, Any]] = {}
    for line in lines:
        step = number(line.get("step"))
        if step is not None:
            by_step[step] = line
    columns: dict[str, tuple[list[float], list[float]]] = {}
    for step in sorted(by_step):
        for name, value in by_step[step].items():
            if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
                steps, values = columns.setdefault(name, ([], []))
                steps.append(step)
                finite = number(value)
                values.append(math.nan if finite is None else finite)
    return {name: Points(np.array(steps), np.array(values)) for name, (steps, values) in columns.items()}


def number(value: Any) -> float | None:
    """`value` as a finite float; None where it is none: text, truth values, NaN, and what is as good as infinite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        converted = float(value)
    except OverflowError:
        return None
    return converted if abs(converted) < 1e100 else None  # false for NaN as well


def last(points: Points | None) -> float | None:
    """The last finite value."""
    if points is None:
        return None
    finite = points.values[np.isfinite(points.values)]
    return float(finite[-1]) if len(finite) else None


def _is_evaluation(line: dict[str, Any]) -> bool:
    if "kind" in line:
        return line["kind"] == "eval"
    return any(name.startswith("held_out_") for name in line)


def _read(path: Path, reader: Any, fallback: Any, complaints: list[str]) -> Any:
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


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _read_yaml(path: Path) -> Any:
    # unresolved on purpose: an interpolation may name an environment variable, which has no place on a page
    return OmegaConf.to_container(load_yaml(path), resolve=False)


def _lives(folder: Path) -> int:
    try:
        return max(1, int(_read_json(folder / RUN)["lives"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return 1


def _checkpoints(folder: Path) -> list[SavedCheckpoint]:
    """Checkpoints whose marker is there, oldest first. Sizes are the marker's; nothing else is opened."""
    found = []
    for marker in (folder / "checkpoints").glob("*/checkpoint.json"):
        if marker.parent.suffix in (".partial", ".damaged"):  # a save under way, or one that was set aside
            continue
        try:
            values = _read_json(marker)
            sizes = [int(entry["bytes"]) for entry in values["files"]]
            found.append(SavedCheckpoint(marker.parent.name, int(values["step"]), sum(sizes), len(sizes)))
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
    return sorted(found, key=lambda checkpoint: (checkpoint.step, checkpoint.name))
