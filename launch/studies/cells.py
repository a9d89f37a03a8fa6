"""Run one cell of a study: train an arm with a seed, export it, score it on tasks, and keep what was measured.

Training is a process of its own, `maskmill train`; scoring is done in this one.
"""

import re
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import numpy as np

from data_pipeline.errors import UserError
from data_pipeline.io.files import canonical_json
from data_pipeline.shards.index import Index
from launch.ranks import STOPPED
from launch.studies.place import Place, Stopped, last_line, maskmill, trains
from launch.studies.read import Run, run_folder, run_of
from launch.studies.score import data_of, model_of, scores
from pretrain.config.settings import RunConfig
from pretrain.run.folder import read_summary
from pretrain.run.machine import machine_name
from pretrain.studies.design import Design
from pretrain.studies.measured import Cell, Measured, measure_run, read_measured, write_measured
from pretrain.tasks.encoders import Encoder, find_encoders

DIVERGED = re.compile("(is not finite|is a spike: .*), the [0-9]+th batch in a row that was skipped")
"""What a run says that ended because its gradients or its losses did not stay in bounds (training/loss_guard.py)."""
RUNTIME = {"dir", "threads", "live", "restarts", "restart_delay", "stop_after"} | {
    "step_limit",
    "stage_limit",
    "folder_wait",
}
"""Settings of run.* that a result does not depend on beyond rounding."""

LATER: dict[str, dict[str, Any]] = {"schedule": {"decay_to": 0.0}, "data": {"both_directions": False}}
"""Settings younger than the first cells, with the value that those had: they are in no identity with that value."""
READ_SETTINGS = (
    "dynamic_masking",
    "mask_stages",
    "order",
    "streams",
    "both_directions",
    "separators",
    "separator_gap",
)
"""Settings of data.* that a result depends on beside the shards."""


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
    started, earlier = time.monotonic(), 0.0
    curve: list[dict[str, float]] = []
    figures: dict[str, float] = {}
    finite = True
    if trains(design, cell, place):
        run = run_of(design, cell, place.folder, place.threads)
        finite = _train(run, cell, place)
        trained = float(read_summary(run_folder(place.folder, cell)).get("seconds") or 0.0)
        earlier = max(0.0, trained - (time.monotonic() - started))
        curve, figures = measure_run(run_folder(place.folder, cell), tokens_by_step(run.phases), finite)
    notes: list[str] = []
    by_epoch: dict[str, list[float]] = {}
    trivial: dict[str, float] = {}
    if finite and design.evaluate:
        model = model_of(design, cell, place)
        for number, scoring in enumerate(design.evaluate):
            for data in data_of(design, cell, place, scoring):
                scored = scores(design, cell, place, model, scoring, number, data, notes)
                figures |= scored.figures
                by_epoch |= scored.by_epoch
                trivial |= scored.trivial
    tuned = [list(pair) for pair in cell.tuned]
    seconds = earlier + time.monotonic() - started
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
                for group, then in LATER.items():
                    values[group] = {k: v for k, v in values[group].items() if k not in then or v != then[k]}
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


def _train(run: Run, cell: Cell, place: Place) -> bool:
    """Train; return whether the run stayed finite."""
    log = place.folder / "logs" / f"{cell.name}.log"
    code, output = maskmill(["train", run.recipe, *run.overrides], log)
    if code == STOPPED:
        raise Stopped(cell.name)
    if code and DIVERGED.search(output):
        return False
    if code:
        raise UserError(f"training failed: {last_line(output)}", where=f"{cell.name} ({log})")
    return True
