"""Run one cell of a study: train an arm with a seed, export it, score it on tasks, and keep what was measured.

Training is a process of its own, `maskmill train`; scoring is done here.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import launch
from data_pipeline.errors import UserError
from data_pipeline.io.canonical_json import canonical_json
from data_pipeline.shards.index import Index
from launch.ranks import STOPPED, tuning
from launch.studies.read import Run, run_folder, run_of
from pretrain.config.settings import RunConfig
from pretrain.evaluate.downstream.encoders import Encoder, find_encoders
from pretrain.evaluate.downstream.evaluate import Evaluation
from pretrain.evaluate.downstream.parts import beside, pick_encoder
from pretrain.evaluate.downstream.settings import settings_for
from pretrain.evaluate.downstream.tasks.registry import OWN, folder_of, folders_of
from pretrain.evaluate.studies.design import Design, Scoring
from pretrain.evaluate.studies.measured import Cell, Measured, measure_run, read_measured, write_measured
from pretrain.evaluate.studies.segment_edits import edited_folder
from pretrain.run.machine import machine_name

DIVERGED = "batch in a row that was skipped"
"""What a run says that ended because its gradients were not finite."""
RUNTIME = {"dir", "threads", "live", "restarts", "restart_delay", "step_limit", "stop_after"}
"""Settings of run.* that a result does not depend on beyond rounding."""

READ_SETTINGS = ("dynamic_masking", "mask_stages", "order", "streams", "separators", "separator_gap")
"""Settings of data.* that a result depends on beside the shards."""


class Stopped(RuntimeError):
    """A signal ended a run, which has saved."""


@dataclass(frozen=True)
class Place:
    """Where a study is run."""

    folder: Path
    data: Path | None
    """The files of tasks."""
    model: Path | None
    """Score this model in place of those of the arms that train."""
    threads: int
    """Of one cell."""

    @property
    def cells(self) -> Path:
        """The folder with what was measured."""
        return self.folder / "cells"


def measure(design: Design, cell: Cell, place: Place) -> Measured:
    """Return what was measured of a cell, or measure it now and keep it. Raises UserError for a run that failed, or was
    measured with other settings."""
    identity = identity_of(design, cell, place)
    known = read_measured(place.cells, cell)
    if known is not None:
        if known.identity != identity:
            raise UserError(
                "was measured with other settings, text or tasks",
                where=place.cells / f"{cell.name}.json",
                remedy="another --out, or remove this file",
            )
        return known
    started = time.monotonic()
    curve: list[dict[str, float]] = []
    figures: dict[str, float] = {}
    finite = True
    if trains(design, cell, place):
        run = run_of(design, cell, place.folder, place.threads)
        finite = _train(run, cell, place)
        curve, figures = measure_run(run_folder(place.folder, cell), tokens_by_step(run.phases), finite)
    notes: list[str] = []
    by_epoch: dict[str, list[float]] = {}
    trivial: dict[str, float] = {}
    if finite and design.evaluate:
        model = _model(design, cell, place)
        for number, scoring in enumerate(design.evaluate):
            for data in data_of(design, cell, place, scoring):
                scored = _scores(design, cell, place, model, scoring, number, data, notes)
                figures |= scored.figures
                by_epoch |= scored.by_epoch
                trivial |= scored.trivial
    tuned = [list(pair) for pair in cell.tuned]
    seconds = time.monotonic() - started
    where = (machine_name(), datetime.now(UTC).strftime("%Y-%m-%d"))
    found = Measured(
        cell.arm,
        cell.seed,
        tuned,
        figures,
        curve,
        seconds,
        finite,
        identity,
        notes,
        by_epoch,
        *where,
        trivial=trivial,
    )
    write_measured(place.cells, found)
    shutil.rmtree(run_folder(place.folder, cell) / "checkpoints", ignore_errors=True)
    return found


def trains(design: Design, cell: Cell, place: Place) -> bool:
    """Return whether a cell trains a model."""
    return place.model is None and not design.arms[cell.arm].model_of


def identity_of(design: Design, cell: Cell, place: Place) -> str:
    """Return a hash of what decides a cell's figures: settings, shards, tasks, and the arm whose model it takes."""
    arm = design.arms[cell.arm]
    parts: list[Any] = [asdict(arm), [asdict(scoring) for scoring in design.evaluate], cell.seed]
    sources = [Cell(name, cell.seed) for name in arm.sources] or [cell]
    if place.model is not None:
        parts.append([Encoder(folder).identity for folder in find_encoders(place.model)])
    else:
        for source in sources:
            run = run_of(design, source, place.folder, place.threads)
            for phase in run.phases:
                values = asdict(phase)
                values["run"] = {key: value for key, value in values["run"].items() if key not in RUNTIME}
                values["data"] = {key: values["data"][key] for key in READ_SETTINGS}
                parts += [values, Index.load(phase.data.out).identity]
    return sha256(canonical_json(parts)).hexdigest()


def tokens_by_step(phases: Sequence[RunConfig]) -> Callable[[float], float]:
    """Return how many tokens a run has read after so many steps, for training examples of mean length."""
    ends, tokens = [0.0], [0.0]
    for phase in phases:
        train = Index.load(phase.data.out).train
        ends.append(ends[-1] + phase.train.steps)
        of_a_step = phase.train.global_batch * train.tokens / max(1, train.examples)
        tokens.append(tokens[-1] + phase.train.steps * of_a_step)
    return lambda step: float(np.interp(step, ends, tokens))


def maskmill(arguments: Sequence[str], log: Path) -> tuple[int, str]:
    """Run `maskmill ARGUMENTS` with its output in a file; return its exit code and what it wrote."""
    log.parent.mkdir(parents=True, exist_ok=True)
    package = str(Path(launch.__file__).parents[1])
    inherited = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([package, *([inherited] if inherited else [])])
    with log.open("ab") as file:
        start = file.tell()
        done = subprocess.run(
            [sys.executable, "-P", "-m", "launch.cli", *arguments],
            stdout=file,
            stderr=file,
            stdin=subprocess.DEVNULL,
            env={**tuning(), **os.environ, "PYTHONPATH": path},
            check=False,
        )
    with log.open("rb") as file:
        file.seek(start)
        return done.returncode, file.read().decode(errors="replace")


def last_line(output: str) -> str:
    """Return the last line of an output, without the command's name."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1].removeprefix("maskmill: ") if lines else "it wrote nothing"


def _train(run: Run, cell: Cell, place: Place) -> bool:
    """Train; return whether the run stayed finite."""
    log = place.folder / "logs" / f"{cell.name}.log"
    code, output = maskmill(["train", run.recipe, *run.overrides], log)
    if code == STOPPED:
        raise Stopped(cell.name)
    if code and DIVERGED in output:
        return False
    if code:
        raise UserError(f"training failed: {last_line(output)}", where=f"{cell.name} ({log})")
    return True


def _model(design: Design, cell: Cell, place: Place) -> Path:
    """Return the folder of the model to score: exported, given, or taken from another arm and changed."""
    arm = design.arms[cell.arm]
    source = place.model or _exported(Cell(arm.model_of or cell.arm, cell.seed, cell.tuned), place)
    if not arm.segments:
        return source
    return edited_folder(source, arm.segments, run_folder(place.folder, cell) / "model")


def _exported(cell: Cell, place: Place) -> Path:
    folder = run_folder(place.folder, cell)
    if not (folder / "export").is_dir():
        log = place.folder / "logs" / f"{cell.name}.log"
        code, output = maskmill(["export", str(folder)], log)
        if code:
            raise UserError(f"the export failed: {last_line(output)}", where=f"{cell.name} ({log})")
    return folder / "export"


class Scored(NamedTuple):
    """Scores of a task by `TASK.METRIC`, means over the seeds of fine-tuning."""

    figures: dict[str, float]
    by_epoch: dict[str, list[float]]
    """After each epoch of fine-tuning, where `by_epoch` asks for that."""
    trivial: dict[str, float]
    """Of the best answer that needs no input."""


def _scores(
    design: Design,
    cell: Cell,
    place: Place,
    model: Path,
    scoring: Scoring,
    number: int,
    data: Path,
    notes: list[str],
) -> Scored:
    """Score the model on a task with the files in `data`; nothing, and a note, where it cannot be scored on it. A
    metric that a model does not have is absent."""
    first = (cell.seed - 1) * scoring.seeds + 1 if place.model else 1
    settings = {"threads": place.threads, **scoring.settings, **design.arms[cell.arm].evaluation}
    try:
        other = design.arms[cell.arm].beside
        second = _exported(Cell(other, cell.seed), place) if other and not place.model else None
        evaluation = Evaluation(
            scoring.task,
            beside(pick_encoder(scoring.task, find_encoders(model)), second),
            data,
            run_folder(place.folder, cell) / "evaluation" / str(number),
            settings_for(scoring.task, settings),
            range(first, first + scoring.seeds),
            has_floor=False,
        )
        note = evaluation.run(lambda name, total: nullcontext(lambda n: None))
    except UserError as error:
        notes.append(f"{design.label(cell.arm)} has no score of {scoring.task}: {error}")
        return Scored({}, {}, {})
    split = next(iter(note["scores"]))
    found = note["scores"][split]
    names = {
        m: f"{scoring.name or note['task']}.{m}" for m in scoring.metrics or [note["headline"]] if m in found
    }
    curves = note["details"].get("by_epoch", {}).get(split, {})
    trivial = note["trivial"].get(split, {})
    return Scored(
        {name: found[metric]["mean"] for metric, name in names.items()},
        {name: curves[metric] for metric, name in names.items() if metric in curves},
        {name: trivial[metric] for metric, name in names.items() if metric in trivial},
    )


def data_of(design: Design, cell: Cell, place: Place, scoring: Scoring) -> list[Path]:
    """Return the folders of a task's files for a cell: several treebanks, one of other tasks, or none."""
    own, _, named = scoring.data.partition(" of ")
    if own == "shards":
        source = Cell(
            named or design.arms[cell.arm].model_of or cell.arm, cell.seed, () if named else cell.tuned
        )
        return [Path(run_of(design, source, place.folder, place.threads).phases[-1].data.out)]
    if scoring.data:
        return [folder_of(scoring.task, Path(os.path.expanduser(scoring.data)))]
    if place.data is None:
        return []
    return [place.data] if scoring.task in OWN else folders_of(scoring.task, place.data)
