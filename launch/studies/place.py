"""Say where a study is run, and start `maskmill` there as processes of their own."""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import launch
from data_pipeline.errors import UserError
from data_pipeline.io.files import open_to_write, own_folder
from launch.ranks import tuning
from pretrain.distributed.launch_env import SUPERVISOR
from pretrain.studies.design import Design
from pretrain.studies.measured import Cell


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


def trains(design: Design, cell: Cell, place: Place) -> bool:
    """Return whether a cell trains a model."""
    return place.model is None and not design.arms[cell.arm].model_of


def check_model(design: Design, place: Place) -> None:
    """Raise UserError where arms that would be trained differently would all score the one model that is given."""
    arms = design.trained if place.model else ()
    trained = {arm: (design.arms[arm].recipe or design.recipe, design.arms[arm].settings) for arm in arms}
    others = [arm for arm in arms if trained[arm] != trained[arms[0]]]
    if others:
        raise UserError(
            f"arms {arms[0]} and {others[0]} differ in how they are trained, and would both score this model",
            where=f"--model {place.model}",
            remedy="--arms with one of them and those that take its model",
        )


def maskmill(arguments: Sequence[str], log: Path) -> tuple[int, str]:
    """Run `maskmill ARGUMENTS` with its output in a file; return its exit code and what it wrote. A training saves
    and ends where this process ends before it."""
    own_folder(log.parent, parents=True)
    package = str(Path(launch.__file__).parents[1])
    inherited = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([package, *([inherited] if inherited else [])])
    with open_to_write(log, "ab") as file:
        start = file.tell()
        done = subprocess.run(
            [sys.executable, "-P", "-m", "launch.cli", *arguments],
            stdout=file,
            stderr=file,
            stdin=subprocess.DEVNULL,
            env={**tuning(), **os.environ, "PYTHONPATH": path, SUPERVISOR: str(os.getpid())},
            check=False,
        )
    with log.open("rb") as file:
        file.seek(start)
        return done.returncode, file.read().decode(errors="replace")


def last_line(output: str) -> str:
    """Return the last line of an output, without the command's name."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1].removeprefix("maskmill: ") if lines else "it wrote nothing"
