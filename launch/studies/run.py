"""Run a study: prepare the text of all arms, check what must be equal, run its cells side by side, write the results.

A cell is an arm with a seed and, where a setting is tuned, its value. It is trained, exported and scored on tasks,
and what was measured is kept. Training is a process of its own, `maskmill train`; scoring is done in the process that
runs the cell.

What has been measured is never repeated, so the same command after an interruption continues.
"""

import fnmatch
import os
import re
import shutil
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from contextlib import nullcontext, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data_pipeline.errors import EXIT_STOPPED, UserError, first_line
from data_pipeline.io.files import canonical_json, open_to_write, own_folder
from data_pipeline.shards.index import Index
from data_pipeline.stages.executors import ALL, LocalProcesses, Share, processes_for_jobs
from launch.studies.budget import all_cells, budget_of, first_cells, steps_by_arm, time_arms
from launch.studies.read import Place, Run, Stopped, last_line, maskmill, run_folder, run_of, trains
from pretrain.config.renamed import with_old_keys
from pretrain.config.settings import RunConfig
from pretrain.evaluate.evaluate import Evaluation, beside, pick_encoder
from pretrain.run.files import CHECKPOINTS, EVALUATION, EXPORT
from pretrain.run.folder import read_summary
from pretrain.run.machine import machine_name
from pretrain.studies.design import Design, Scoring
from pretrain.studies.measured import (
    Cell,
    Hashes,
    Measured,
    best_values,
    by_arms,
    check_equal,
    hashes_of,
    measure_run,
    read_measured,
    write_measured,
)
from pretrain.studies.page import Facts, read_facts, write_study
from pretrain.studies.segment_edits import edited_folder
from pretrain.tasks.encoders import Encoder, find_encoders
from pretrain.tasks.registry import OWN, folder_of, folders_of
from pretrain.tasks.settings import settings_for

# Find the model of a cell and the files of its tasks, and score it on them.


def model_of(design: Design, cell: Cell, place: Place) -> Path:
    """Return the folder of the model to score: exported, given, or taken from another arm and changed."""
    arm = design.arms[cell.arm]
    source = place.model or _exported(Cell(arm.model_of or cell.arm, cell.seed, cell.tuned), place)
    if not arm.segments:
        return source
    return edited_folder(source, arm.segments, run_folder(place.folder, cell) / "model")


def _exported(cell: Cell, place: Place) -> Path:
    folder = run_folder(place.folder, cell)
    if not (folder / EXPORT).is_dir():
        log = place.folder / "logs" / f"{cell.name}.log"
        code, output = maskmill(["export", str(folder)], log)
        if code:
            raise UserError(f"the export failed: {last_line(output)}", where=f"{cell.name} ({log})")
    return folder / EXPORT


class Scored(NamedTuple):
    """Scores of a task by `TASK.METRIC`, means over the seeds of fine-tuning."""

    figures: dict[str, float]
    by_epoch: dict[str, list[float]]
    """After each epoch of fine-tuning, where `by_epoch` asks for that."""
    trivial: dict[str, float]
    """Of the best answer that needs no input."""


def scores(
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
            run_folder(place.folder, cell) / EVALUATION / str(number),
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
    wanted = scoring.metrics or [note["headline"]]
    names = {
        metric: f"{scoring.name or note['task']}.{metric}"
        for pattern in wanted
        for metric in fnmatch.filter(found, pattern)
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


# Run one cell, and keep what was measured with the hash of what decides it.


DIVERGED = re.compile("(is not finite|is a spike: .*), the [0-9]+th batch in a row that was skipped")
"""What a run says that ended because its gradients or its losses did not stay in bounds
(pretrain/training/guard.py)."""
RUNTIME = {"dir", "threads", "live", "restarts", "restart_delay", "stop_after"} | {
    "step_timeout",
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
    shutil.rmtree(run_folder(place.folder, cell) / CHECKPOINTS, ignore_errors=True)
    return found


def identity_of(design: Design, cell: Cell, place: Place) -> str:
    """Return a hash of what decides a cell's figures: settings, shards, tasks, and the arm whose model it takes."""
    arm = design.arms[cell.arm]
    own = asdict(arm) | {"settings": with_old_keys(arm.settings)}
    parts: list[Any] = [own, [asdict(scoring) for scoring in design.evaluate], cell.seed]
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
                values["optim"] = with_old_keys(values["optim"], "optim")
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
    if code == EXIT_STOPPED:
        raise Stopped(cell.name)
    if code and DIVERGED.search(output):
        return False
    if code:
        raise UserError(f"training failed: {last_line(output)}", where=f"{cell.name} ({log})")
    return True


# Prepare a study, run its cells side by side, and write what they came to.


Say = Callable[[str], None]


class Study:
    """A study at a place."""

    def __init__(self, design: Design, place: Place, command: str, say: Say) -> None:
        self.design, self.place = design, place
        self._command, self._say = command, say
        self._equal: dict[str, dict[str, str]] = {}
        self._failed: dict[str, str] = {}

    def prepare(self) -> None:
        """Say what the study takes, make vocabularies and shards of all arms, check what must be equal, and time the
        steps of arms that are compared at equal time. Raises UserError; Stopped if a signal ended a short run."""
        self._say(str(budget_of(self.design, self.place, self.found())))
        done: set[str] = set()
        training = [cell for cell in first_cells(self.design) if trains(self.design, cell, self.place)]
        for cell in training:
            run = run_of(self.design, cell, self.place.folder, self.place.threads)
            folders = {phase.data.out for phase in run.phases}
            if folders <= done:
                continue
            done |= folders
            self._say(f"preparing {', '.join(sorted(folders))} for {self.design.label(cell.arm)}")
            verbs = ["prepare"] if Path(run.config.data.vocab).exists() else ["vocab", "prepare"]
            for verb in verbs:
                log = self.place.folder / "logs" / f"{verb}.log"
                code, output = maskmill([verb, run.recipe, *run.overrides], log)
                if code:
                    raise UserError(
                        f"maskmill {verb} failed: {last_line(output)}", where=f"{cell.arm} ({log})"
                    )
        self._check_equal()
        time_arms(self.design, self.place, self._say)
        if steps := steps_by_arm(self.design, self.place):
            self._say(steps)

    def _check_equal(self) -> None:
        """Check what is declared to be equal in arms that train, with every seed."""
        declared = {} if self.place.model else self.design.equal
        equal = {kind: arms for kind, arms in declared.items() if len(arms) > 1}
        if not equal:
            return
        kinds_of = {arm: [k for k, arms in equal.items() if arm in arms] for arm in self.design.trained}
        for seed in self.design.seeds:
            hashes = {arm: self._hashes(arm, seed, tuple(kinds)) for arm, kinds in kinds_of.items() if kinds}
            self._equal[str(seed)] = check_equal(hashes, equal, seed, f"study {self.design.name}")
            for arms, kinds in by_arms(equal).items():
                said = ", ".join(kind.replace("_", " ") for kind in kinds)
                every = arms == self.design.trained
                where = f"all {len(arms)} arms" if every else ", ".join(arms)
                self._say(f"seed {seed}: {said} equal in {where}")

    def _hashes(self, arm: str, seed: int, kinds: tuple[str, ...]) -> Hashes:
        cell = next(c for c in first_cells(self.design) if c.arm == arm)._replace(seed=seed)
        return hashes_of(run_of(self.design, cell, self.place.folder, self.place.threads).config, kinds)

    def run(self, jobs: int, share: Share = ALL) -> None:
        """Run this share of the cells, `jobs` at a time, and, for all of them, write what was found. Raises UserError
        at the end if a run failed; Stopped if a signal ended one."""
        stopped = False
        waves: tuple[Callable[[], Sequence[Cell | None]], ...] = (self._first, self._further, self._dependent)
        if not self.design.tune:  # the first seed chooses nothing for the others
            waves = (lambda: [*self._first(), *self._further()], self._dependent)
        for wave in waves:
            cells = wave()
            mine = [cell for n in share.tasks(len(cells)) if (cell := cells[n])]
            stopped = stopped or self._run_all(mine, jobs)
        if share == ALL:
            self.write()
        if stopped:
            raise Stopped(self.design.name)
        if self._failed:
            name, why = next(iter(self._failed.items()))
            raise UserError(
                f"{len(self._failed)} runs failed, first {name}: {why}", where=f"study {self.design.name}"
            )

    def _first(self) -> list[Cell]:
        """Return the runs of the first seed that train, or score a model that is given."""
        return [cell for cell in first_cells(self.design) if not self.design.arms[cell.arm].model_of]

    def _further(self) -> list[Cell | None]:
        """Return those of further seeds, each arm at its best tuned values. None stands for one whose grid is not
        finished, so that the numbers of the others, which shares are made of, stay the same."""
        wanted, found = self._first(), self.found()
        best: dict[str, tuple[tuple[str, Any], ...]] = dict.fromkeys((cell.arm for cell in wanted), ())
        if self.design.tune:
            unfinished = {cell.arm for cell in wanted if cell not in found}
            done = [found[cell] for cell in wanted if cell.arm not in unfinished]
            best = best_values(done, self.design.figure)
        arms = dict.fromkeys(cell.arm for cell in wanted)
        return [
            Cell(arm, seed, best[arm]) if arm in best else None
            for arm in arms
            for seed in self.design.seeds[1:]
        ]

    def _dependent(self) -> list[Cell | None]:
        """Return those that take the model of another arm; None for one whose model is not there yet."""
        there = {(cell.arm, cell.seed) for cell in self.found()}
        return [
            Cell(name, seed)
            if self.place.model or all((source, seed) in there for source in arm.sources)
            else None
            for name, arm in self.design.arms.items()
            for seed in self.design.seeds
            if arm.model_of
        ]

    def _run_all(self, cells: Sequence[Cell], jobs: int) -> bool:
        """Run the cells that are not done; return whether a signal ended one."""
        left = [cell for cell in cells if cell not in self.found()]
        for cell in cells:
            if cell not in left:
                measure(self.design, cell, self.place)  # refuses what was measured with other settings
        if not left:
            return False
        if jobs == 1:
            return any(self._kept(cell, partial(measure, self.design, cell, self.place)) for cell in left)
        with processes_for_jobs(min(jobs, len(left))) as pool:
            futures = {pool.submit(measure, self.design, cell, self.place): cell for cell in left}
            return any(self._kept(futures[future], future.result) for future in as_completed(futures))

    def _kept(self, cell: Cell, result: Callable[[], Measured]) -> bool:
        """Say what a run came to; return whether a signal ended it. A run that fails, for whatever reason, keeps no
        other from it."""
        try:
            found = result()
        except Stopped:
            return True
        except LocalProcesses.deaths:
            raise
        except Exception as error:
            why = str(error) if isinstance(error, UserError) else self._traced(cell, error)
            self._failed[cell.name] = why
            self._say(f"{cell.name}: {why}")
            return False
        figure = self.design.figure
        value = found.figures.get(figure)
        self._say(f"{cell.name}: {figure} {'not reached' if value is None else f'{value:.4g}'}")
        return False

    def _traced(self, cell: Cell, error: Exception) -> str:
        """Write an error that nobody foresaw into the run's log; return one line that names both."""
        log = self.place.folder / "logs" / f"{cell.name}.log"
        with suppress(OSError):
            own_folder(log.parent, parents=True)
            with open_to_write(log, "a") as file:
                file.writelines(traceback.format_exception(error))
        return f"{log}: {type(error).__name__}: {first_line(error)} (please report it)"

    def found(self) -> dict[Cell, Measured]:
        """Return what has been measured of this study's runs."""
        kept = (read_measured(self.place.cells, cell) for cell in self._possible())
        return {one.cell: one for one in kept if one is not None}

    def _possible(self) -> list[Cell]:
        grid = first_cells(self.design)
        return [cell._replace(seed=seed) for cell in grid for seed in self.design.seeds]

    def redraw(self) -> None:
        """Write table, picture and page again, with what the command that measured said of itself: its budget, what
        was equal, and why runs failed."""
        self.write(read_facts(self.place.folder, self.design.form))

    def write(self, facts: Facts | None = None) -> None:
        """Write result.json, table, picture and page from what has been measured. `facts`: of an earlier command."""
        found = self.found()
        expected = [*first_cells(self.design), *filter(None, self._further())]
        known = {(cell.arm, cell.seed) for cell in expected}
        expected += [c for c in all_cells(self.design) if (c.arm, c.seed) not in known]
        write_study(self.place.folder, self.design, expected, found, facts or self._facts())

    def _facts(self) -> Facts:
        return Facts(
            command=self._command,
            budget=str(budget_of(self.design, self.place, {})),
            equal=self._equal,
            failed=self._failed,
            unscored=self._unscored(),
            steps=steps_by_arm(self.design, self.place),
        )

    def _unscored(self) -> list[str]:
        cell = first_cells(self.design)[0]
        return [
            f"{scoring.task}: no folder of its files (--data)"
            for scoring in self.design.evaluate
            if not scoring.data.startswith("shards") and not data_of(self.design, cell, self.place, scoring)
        ]
