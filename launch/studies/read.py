"""Read a study from its YAML file and `key=value` pairs, and make each run's configuration."""

import json
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from data_pipeline.errors import UserError
from data_pipeline.io.files import canonical_json
from data_pipeline.settings import settings_affecting_bytes
from launch.settings.evaluation import read_changes
from launch.settings.named_file import find_named
from launch.settings.overrides import parse_override
from launch.settings.recipe import load_config
from launch.studies import STUDIES, study_names
from launch.studies.step_times import equal_steps
from pretrain.config.phases import phases_of
from pretrain.config.settings import RunConfig
from pretrain.config.yaml_files import load_yaml
from pretrain.studies.design import OF_TASKS, Changes, Design, Settings, flat, parse_design
from pretrain.studies.measured import Cell


def read_design(study: str, changes: Changes) -> Design:
    """Return the study that a shipped name or a YAML path names. Raises UserError for any mistake in it."""
    path = find_study(study)
    values = load_yaml(path)
    if not isinstance(values, dict):
        raise UserError("not a study", where=path, expected="a mapping: title, question, recipe, arms")
    named = {str(key): value for key, value in values.items()}
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
