"""Read a run folder into a RunRecord: metrics by name, final numbers, settings, checkpoints.

Reads only files, so that it works during a run, after a kill, and on another machine.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import UserError
from pretrain.checkpoint.store import SavedCheckpoint, saved_checkpoints
from pretrain.run.events import LOST, Attempt, read_attempts, read_disturbances, why_not_saved
from pretrain.run.files import (
    CONFIG,
    METRICS,
    RUN,
    SAMPLES,
    SUMMARY,
    number,
    objects,
    read_json,
    read_or,
    table,
)
from pretrain.run.folder import read_settings, refuse_other_format, shown_table
from pretrain.run.learning import Finding, Learning, learning_of
from pretrain.run.metrics import HELD_OUT, Prediction, headline_of, leading_prediction
from pretrain.run.metrics_log import EVAL, PROBE, TRUST, TRUST_PREFIX, is_torn, read_metrics, sorted_lines
from pretrain.run.task_scores import TaskScore, read_task_scores


class Points(NamedTuple):
    """One metric over the steps at which it was logged; non-finite values are NaN."""

    steps: NDArray[np.float64]
    values: NDArray[np.float64]


@dataclass(frozen=True)
class RunRecord:
    """What the report knows about a run."""

    folder: Path
    train: dict[str, Points]  # by metric name, from lines of kind `train`
    held_out: dict[str, Points]  # the same from lines of kind `eval`
    probe: dict[str, Points]  # the same from lines of kind `probe`
    trust: dict[str, Points]  # trust ratio by tensor
    slowdowns: list[tuple[float, str]]  # step, and what slowed the run down then
    events: list[dict[str, Any]]  # skipped batches, rollbacks, damaged data, oldest first
    summary: dict[str, Any]
    config: dict[str, Any]
    identity: dict[str, Any]  # settings that decide the weights
    not_saved: str  # why the newest save failed; empty if it did not
    attempts: int  # number of starts: 1 plus resumptions
    history: list[Attempt]  # records of each attempt
    checkpoints: list[SavedCheckpoint]
    complaints: list[str]  # files that could not be read, in words
    learning: Learning  # the newest metrics, and problems with what it has learnt
    samples: dict[str, Any] = field(default_factory=dict)  # blanks that an export filled
    tasks: list[TaskScore] = field(default_factory=list)  # what the exported model scored

    @property
    def name(self) -> str:
        """The run folder's own name."""
        return self.folder.resolve().name or "run"

    @property
    def status(self) -> str:
        """finished, stopped, failed or running, as the run itself last stated; `unknown` without a statement."""
        return str(self.summary.get("status") or "unknown")

    @property
    def ended(self) -> bool:
        """Whether the summary is final."""
        return self.status in ("finished", "stopped", "failed")

    @property
    def phases(self) -> list[tuple[str, float, float]]:
        """Name, first and last step of each phase; empty if the run has none."""
        rows = [row for row in objects(self.summary.get("phases")) if row.get("name")]
        ends = [(str(row.get("name")), number(row.get("first")), number(row.get("last"))) for row in rows]
        return [(name, first, end) for name, first, end in ends if first is not None and end is not None]

    @property
    def headline(self) -> str:
        """The headline metric of the run's objective."""
        return headline_of(self.summary)

    @property
    def prediction(self) -> Prediction:
        """What that metric predicts."""
        return leading_prediction(self.headline)

    @property
    def baselines(self) -> dict[str, Any]:
        """The newest metrics by key, those of an evaluation at step 0 included."""
        return self.learning.metrics

    @property
    def metrics(self) -> dict[str, Any]:
        """The newest metrics by key, without held-out ones of an evaluation at step 0."""
        newest = self.learning.metrics
        return {k: v for k, v in newest.items() if not (self.learning.untrained and k.startswith(HELD_OUT))}

    @property
    def findings(self) -> list[Finding]:
        """Problems with what it has learnt."""
        return self.learning.findings

    @property
    def lost(self) -> list[Attempt]:
        """The attempts that did not log their end."""
        return [attempt for attempt in self.history if attempt.status == LOST]

    def final(self, name: str) -> float | None:
        """Return the last finite value of a metric: the summary's if the run has ended, else the newest line's. None
        for a held-out figure whose newest value is not a number: an older one would describe an earlier model."""
        held_out = self.held_out.get(name)
        if held_out is not None and not math.isfinite(held_out.values[-1]):
            return None
        stated = number(self.summary.get(name))
        logged = last(self.held_out.get(name)) if name in self.held_out else last(self.train.get(name))
        first, second = (stated, logged) if self.ended else (logged, stated)
        return second if first is None else first

    def setting(self, path: str) -> Any:
        """Return the setting at a dotted path of config.yaml, as in the newest phase; None if there is none."""
        own = _at(self._phase(), path)
        return _at(self.config, path) if own is None else own

    def _phase(self) -> Any:
        name = self.summary.get("phase")
        return next((p for p in objects(self.config.get("phases")) if p.get("name") == name), None)


def _at(value: Any, path: str) -> Any:
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def read_run(folder: Path) -> RunRecord:
    """Read everything that the report needs from `folder`. Raises UserError if it is not a run."""
    if not any((folder / name).is_file() for name in (METRICS, SUMMARY, CONFIG)):
        raise UserError(
            "not a run" if folder.is_dir() else "no such folder",
            where=folder,
            expected=f"a run folder with {METRICS}, {SUMMARY} or {CONFIG}",
            remedy="give the folder that `run.dir` named",
        )
    complaints: list[str] = []
    logged = read_or(folder / METRICS, lambda path: read_metrics(path.parent), [], complaints)
    damaged = len(sorted_lines(folder)[1])
    if damaged > is_torn(folder):  # a torn last line is one that the run is writing, or that a kill left
        complaints.append(f"Damaged lines of {METRICS}, left out here: {damaged}.")
    lines = [line for line in logged if line.get("kind") != TRUST]
    evaluations = [line for line in lines if line.get("kind") == EVAL]
    probes = [line for line in lines if line.get("kind") == PROBE]
    about = shown_table(folder / RUN, complaints)
    refuse_other_format(about, folder)
    summary = read_or(folder / SUMMARY, read_json, {}, complaints)
    summary = shown_table(folder / SUMMARY, complaints) if summary else summary
    identity, attempts = about.get("identity"), number(about.get("attempts"))
    return RunRecord(
        folder=folder,
        train=points_by_name([line for line in lines if line.get("kind") not in (EVAL, PROBE)]),
        held_out=points_by_name(evaluations),
        probe=points_by_name(probes),
        trust=_trust([line for line in logged if line.get("kind") == TRUST]),
        slowdowns=_slowdowns(lines),
        events=read_disturbances(folder),
        not_saved=why_not_saved(folder),
        summary=summary,
        config=read_or(folder / CONFIG, lambda path: read_settings(path.parent), {}, complaints),
        identity=identity if isinstance(identity, dict) else {},
        attempts=max(1, int(attempts or 1)),
        history=read_attempts(folder),
        checkpoints=saved_checkpoints(folder),
        complaints=complaints,
        learning=learning_of(summary, lines),
        samples=table(folder / SAMPLES),
        tasks=read_task_scores(folder),
    )


def _trust(lines: list[dict[str, Any]]) -> dict[str, Points]:
    points = points_by_name(lines)
    return {
        name.removeprefix(TRUST_PREFIX): own for name, own in points.items() if name.startswith(TRUST_PREFIX)
    }


def _slowdowns(lines: list[dict[str, Any]]) -> list[tuple[float, str]]:
    """Return (step, words) of what slowed the run down, in the order of the log."""
    slowdowns = []
    for line in lines:
        step, words = number(line.get("step")), line.get("slowdowns")
        if step is not None and isinstance(words, list):
            slowdowns += [(step, str(one)) for one in words]
    return slowdowns


def points_by_name(lines: list[dict[str, Any]]) -> dict[str, Points]:
    """Return metric name -> its points in order of step. For a step logged twice, the later line counts."""
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


def last(points: Points | None) -> float | None:
    """Return the last finite value."""
    if points is None:
        return None
    finite = points.values[np.isfinite(points.values)]
    return float(finite[-1]) if len(finite) else None
