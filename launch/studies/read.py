"""Read a study from its YAML file and `key=value` pairs, configure each of its runs, and start `maskmill` for them.

In a study that compares at equal time, the reference has the study's steps; every other arm has as many of its own as
take the same time.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import launch
from data_pipeline.errors import UserError
from data_pipeline.io.files import canonical_json, open_to_write, own_folder, write_whole
from data_pipeline.settings import settings_affecting_bytes
from launch.ranks import tuning
from launch.recipe import find_named, load_config, parse_override, present_names, read_changes
from launch.studies import STUDIES, study_names
from pretrain.config.phases import phases_of
from pretrain.config.renamed import with_old_keys
from pretrain.config.settings import RunConfig
from pretrain.config.yaml_files import load_yaml
from pretrain.distributed.launch_env import SUPERVISOR
from pretrain.studies.design import OF_TASKS, Changes, Design, Settings, flat, parse_design
from pretrain.studies.measured import Cell

# Say where a study is run, and start `maskmill` there as processes of their own.


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


# Keep how long a step of an arm takes beside one of the reference, for studies that compare at equal time.


STEP_TIMES = "step_times.json"
"""In the folder of the study."""


@dataclass(frozen=True)
class StepTime:
    """An arm and the reference, measured in turns on one machine; milliseconds a step."""

    arm: str
    step_ms: float
    reference_ms: float
    machine: str
    date: str

    def steps(self, reference_steps: int) -> int:
        """Return how many steps of the arm take as long as so many of the reference.

        >>> StepTime("electra", 30.0, 20.0, "2 cores", "2026-11-26").steps(3000)
        2000
        """
        return max(1, round(reference_steps * self.reference_ms / self.step_ms))


def read_step_times(folder: Path) -> dict[str, StepTime]:
    """Return what was measured, by `step_time_key`."""
    try:
        values = json.loads((folder / STEP_TIMES).read_text("utf-8"))
        return {key: StepTime(**value) for key, value in values.items()}
    except (FileNotFoundError, ValueError, TypeError, AttributeError):
        return {}


def write_step_times(folder: Path, times: Mapping[str, StepTime]) -> None:
    """Write what was measured, whole or not at all."""
    values = {key: asdict(time) for key, time in times.items()}
    write_whole(folder / STEP_TIMES, json.dumps(values, indent=1).encode())


def step_time_key(design: Design, arm: str) -> str:
    """Return a hash of what decides how long a step of the arm and one of the reference take: their recipes and
    settings, but for those of `run`, as the folder and the threads."""
    parts: list[Any] = []
    for name in (arm, design.reference):
        own = design.arms[name]
        settings: Settings = design.settings | own.settings
        parts += [
            own.recipe or design.recipe,
            with_old_keys({key: value for key, value in settings.items() if not key.startswith("run.")}),
        ]
    return sha256(canonical_json(parts)).hexdigest()[:16]


def equal_steps(design: Design, arm: str, folder: Path, steps: int) -> int:
    """Return the steps of an arm for which it has the time of `steps` of the reference; `steps` themselves where the
    study does not compare at equal time, or the arm has not been timed yet."""
    if not design.equal_time or arm == design.reference:
        return steps
    known = read_step_times(folder).get(step_time_key(design, arm))
    return known.steps(steps) if known else steps


# Read a study, and what the command line changes in it.


def read_design(study: str, changes: Changes) -> Design:
    """Return the study that a shipped name or a YAML path names. Raises UserError for any mistake in it."""
    path = find_study(study)
    values = load_yaml(path)
    if not isinstance(values, dict):
        raise UserError("not a study", where=path, expected="a mapping: title, question, recipe, arms")
    named = {str(key): value for key, value in present_names(values, path.name).items()}
    design = parse_design(path.stem, named, changes, path.name)
    for key in changes.settings:
        if key.startswith(OF_TASKS):
            _check_of_task(design, key)
    return design


def _check_of_task(design: Design, key: str) -> None:
    """Raise UserError for a setting of `maskmill evaluate` that says nothing about its task, or is out of range."""
    from pretrain.tasks.registry import check_name, check_setting
    from pretrain.tasks.settings import settings_for  # with transformers, which takes seconds

    for scoring in design.evaluate:
        if key.startswith(f"{OF_TASKS}{scoring.known_as}."):
            check_setting([check_name(scoring.task)], key.rpartition(".")[2])
            settings_for(scoring.task, scoring.settings)


def find_study(study: str) -> Path:
    """Return the YAML file of a study. Raises UserError, with the nearest names, where there is none."""
    return find_named(study, STUDIES / f"{study.replace('-', '_')}.yaml", study_names(), "study")


def read_settings(words: Sequence[str]) -> Settings:
    """Return the settings of `key=value` pairs by their dotted names; typed, those of `maskmill evaluate`, which are
    evaluate.TASK.SETTING. Raises UserError."""
    found: Settings = {}
    for word in words:
        of_task = word.startswith(OF_TASKS)
        found |= _of_task(word) if of_task else flat(parse_override(word), "command line")
    return {key: _as_numbers(value) for key, value in found.items()}


def _of_task(word: str) -> Settings:
    key, equals, value = word.partition("=")
    if key.count(".") != 2:
        raise UserError(f"unknown key {key}", where="command line", expected="evaluate.TASK.SETTING=VALUE")
    task, _, setting = key.rpartition(".")
    changes = read_changes([f"{setting}{equals}{value}"])
    return {f"{task}.{name}": typed for name, typed in changes.items()}


def source_settings(folder: Path) -> Settings:
    """Return the settings that read a folder whose files or folders are named by their language, as fi.jsonl.zst.
    Raises UserError where there are none."""
    if not folder.is_dir():
        raise UserError("no such folder", where=f"--source {folder}")
    found = sorted(path for path in folder.resolve().iterdir() if not path.name.startswith("."))
    if not found:
        raise UserError(
            "is empty", where=f"--source {folder}", expected="files named by language, as fi.jsonl"
        )
    languages = [path.name.partition(".")[0] for path in found]
    return {"data.sources": [str(path) for path in found], "data.languages": languages}


def _as_numbers(value: Any) -> Any:
    """Return a list whose texts that are numbers are numbers: YAML takes 1e-3 for a text."""
    if not isinstance(value, list):
        return value
    return [_number(item) for item in value]


def _number(value: Any) -> Any:
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


# Make the configuration of each run.


class Run(NamedTuple):
    """What one cell of a study runs."""

    recipe: str
    overrides: list[str]
    """key=value pairs."""
    config: RunConfig
    """What they come to."""

    @property
    def phases(self) -> list[RunConfig]:
        """The settings of each phase; one where the run has no phases."""
        return [phase.config for phase in phases_of(self.config)]


def run_of(design: Design, cell: Cell, folder: Path, threads: int) -> Run:
    """Return the run of a cell whose files are in the study's folder, on so many threads. What is prepared for it has a
    folder named after the settings that decide its bytes, for each phase, so that arms with the same data share it.
    Where a study compares at equal time it has the steps that were found for its arm. Raises UserError for settings
    that do not fit."""
    arm = design.arms[cell.arm]
    recipe = arm.recipe or design.recipe
    given = {**_DEFAULTS, **design.settings, **arm.settings, **dict(cell.tuned)}
    given |= {"run.seed": cell.seed, "run.dir": str(run_folder(folder, cell)), "run.live": False}
    first = load_config(recipe, overrides_of(given))
    if any(phase.config.train.minutes for phase in phases_of(first)):
        raise UserError(
            "has train.minutes, which leaves open how many steps it has",
            where=f"study {design.name}, arm {cell.arm}",
            expected="train.steps; equal_time: true gives each arm as many as take the reference's time",
        )
    steps = first.train.steps
    if first.phases:
        if design.equal_time:
            raise UserError(
                "has phases",
                where=f"study {design.name}, arm {cell.arm}",
                expected="one phase, with equal_time",
            )
        steps = phases_of(first)[-1].last or 0
        given = {key: value for key, value in given.items() if not key.startswith("phases.")}
    elif (own := equal_steps(design, cell.arm, folder, steps)) != steps:
        given["train.steps"] = steps = own
    given.setdefault("run.threads", max(1, threads // first.run.ranks))
    vocabulary = _vocabulary_key(first, given)
    given.setdefault("data.vocab", str(folder / "data" / f"vocabulary-{_short(vocabulary)}"))
    if first.phases:
        given["phases"] = [
            changes | {"data": {**changes.get("data", {}), "out": _shards(folder, vocabulary, phase.config)}}
            for changes, phase in zip(first.phases, phases_of(first), strict=True)
        ]
    else:
        given["data.out"] = _shards(folder, vocabulary, first)
    if "train.eval_every" not in given:
        given["train.eval_every"] = max(1, steps // design.evaluations)
    if "train.checkpoint_every" not in given:
        given["train.checkpoint_every"] = max(1, steps // 4)
    overrides = overrides_of(given)
    return Run(recipe, overrides, load_config(recipe, overrides))


_DEFAULTS: Settings = {"monitor.tracker": "jsonl", "checkpoint.keep": 1, "checkpoint.keep_best": False}


def run_folder(folder: Path, cell: Cell) -> Path:
    """Return the run folder of a cell."""
    return folder / "runs" / cell.name


def _vocabulary_key(config: RunConfig, given: Settings) -> list[Any]:
    """Return what decides the vocabulary."""
    sources = [config.data.sources, config.data.weights, config.data.languages, config.data.smoothing]
    return [sources, vars(config.vocabulary), config.data.text_field, given.get("data.vocab", "")]


def _shards(folder: Path, vocabulary: list[Any], config: RunConfig) -> str:
    """Return the folder of the shards of a phase."""
    return str(folder / "data" / f"shards-{_short([vocabulary, settings_affecting_bytes(config.data)])}")


def _short(value: list[Any]) -> str:
    return sha256(canonical_json(value)).hexdigest()[:8]


def overrides_of(settings: Settings) -> list[str]:
    """Return settings as the `key=value` pairs of a command line."""
    return [f"{key}={_text(value)}" for key, value in settings.items()]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value) if isinstance(value, list) else str(value)
