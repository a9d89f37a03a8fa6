"""Run a study: prepare the text of all arms, check what must be equal, run its cells side by side, write the results.

What has been measured is never repeated, so the same command after an interruption continues.
"""

import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from data_pipeline.errors import UserError, first_line
from data_pipeline.io.files import open_to_write, own_folder
from data_pipeline.stages.executors import ALL, LocalProcesses, Share, processes_for_jobs
from launch.studies.budget import all_cells, budget_of, first_cells
from launch.studies.cells import measure
from launch.studies.place import Place, Stopped, last_line, maskmill, trains
from launch.studies.read import run_of
from launch.studies.score import data_of
from launch.studies.time_arms import steps_by_arm, time_arms
from pretrain.studies.design import Design
from pretrain.studies.measured import (
    Cell,
    Hashes,
    Measured,
    best_values,
    by_arms,
    check_equal,
    hashes_of,
    read_measured,
)
from pretrain.studies.page import Facts, read_facts, write_study

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
