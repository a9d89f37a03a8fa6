"""Load a checked RunConfig from a recipe's name or YAML path and `key=value` pairs.

Three merges: defaults <- recipe (after the one it `extends`) <- command line. Unknown keys are errors. What a Hugging
Face folder in init_from states is merged last, and contradicts no key of recipe and command line.
"""

import difflib
import os
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

from omegaconf import DictConfig, OmegaConf

from data_pipeline.errors import UserError, one_error
from launch.recipes import RECIPES, recipe_names
from launch.settings.folder import with_folder_settings
from launch.settings.named_file import find_named, is_file
from launch.settings.overrides import parse_override, whole
from launch.settings.recipe_phases import as_typed, check_not_in_phases, check_one_length, with_changes
from pretrain.config.phases import leaves, one_length, phases_of
from pretrain.config.settings import RunConfig
from pretrain.config.yaml_files import load_yaml, merged, schema, typed
from pretrain.objectives.registry import registered
from pretrain.preflight.validate import wrong_settings


def load_config(recipe: str, overrides: list[str]) -> RunConfig:
    """Load the run that `recipe` and `overrides` describe. Raises UserError for any mistake in them."""
    settings, chain = schema(), recipe_values(find_recipe(recipe))
    for path, values in chain:
        settings = _merge(settings, values, where=str(path))
    settings = _with_overrides(settings, overrides)
    config = typed(with_folder_settings(settings, _given(chain, overrides)), recipe)
    assert isinstance(config, RunConfig)
    _complete(config)
    phases: list[dict[str, Any]] = []
    wrong: dict[str, tuple[UserError, str]] = {}
    for phase, changes in zip(phases_of(config), config.phases or [{}], strict=True):
        _complete(phase.config)
        found = wrong_settings(phase.config, phase.schedule_steps)
        wrong.update({str(error): (error, phase.name) for error in found} | wrong)
        phases.append(as_typed(changes, asdict(phase.config) | {"name": phase.name}))
    if wrong:
        raise one_error([_in_phase(error, name) for error, name in wrong.values()], where="settings")
    config.phases = phases if config.phases else []
    return config


def given_settings(recipe: str, overrides: list[str]) -> set[str]:
    """Return the dotted keys that the recipe, those that it extends and the command line set. Raises UserError for a
    recipe that cannot be read."""
    return _given(recipe_values(find_recipe(recipe)), overrides)


def names_sources(recipe: str, overrides: list[str]) -> bool:
    """Return whether the command line or a recipe of the user's own, not one that ships, sets data.sources. Raises
    UserError for a recipe that cannot be read."""
    own = [(path, values) for path, values in recipe_values(find_recipe(recipe)) if path.parent != RECIPES]
    return any(key == "phases" or key.endswith("data.sources") for key in _given(own, overrides))


def _given(chain: list[tuple[Path, dict[str, Any]]], overrides: list[str]) -> set[str]:
    keys = {key for _, values in chain for key, _ in leaves(values)}
    return keys | {override.partition("=")[0] for override in overrides}


def _with_overrides(settings: DictConfig, overrides: list[str]) -> DictConfig:
    """Merge the pairs of the command line. Raises UserError that lists all invalid ones."""
    check_one_length(overrides)
    wrong = []
    for override in overrides:
        try:
            settings = _merge(settings, parse_override(override), where="command line")
        except UserError as error:
            wrong.append(error)
    if wrong:
        raise one_error(wrong, where="command line")
    return settings


def _complete(config: RunConfig) -> None:
    """Fill in what follows from the machine and from other settings."""
    for settings, name in (
        (config.run, "dir"),
        (config.data, "out"),
        (config.data, "vocab"),
        (config.data, "lexicon"),
        (config.data, "work"),
        (config.data, "tokens"),
        (config, "init_from"),
    ):
        value = getattr(settings, name)
        if value.startswith("~"):
            setattr(settings, name, os.path.expanduser(value))  # an unknown ~user is kept
    config.data.sequences = config.data.sequences or registered(config.objective.name).sequences[0]


def _in_phase(error: UserError, name: str) -> UserError:
    where = ", ".join(part for part in (f"phase {name}" if name else "", error.where) if part)
    return UserError(error.what, where=where, expected=error.expected, remedy=error.remedy)


def find_recipe(recipe: str) -> Path:
    """Return the YAML file that `recipe` names: a shipped recipe, or a path."""
    return find_named(recipe, RECIPES / f"{recipe}.yaml", recipe_names(), "recipe")


def recipe_values(path: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Return the recipe's values, after those of the recipes that it extends."""
    chain: list[tuple[Path, dict[str, Any]]] = []
    while True:
        values = _read(path)
        parent = values.pop("extends", None)
        chain.insert(0, (path, _fill_here(values, path.parent)))
        if parent is None:
            return chain
        if not isinstance(parent, str):
            raise UserError("`extends` is not the name of a recipe", where=path)
        beside = path.parent / f"{parent}.yaml"
        path = beside if is_file(beside) else find_recipe(parent)
        if path in [seen for seen, _ in chain]:
            raise UserError("recipes extend each other in a circle", where=path)


def _read(path: Path) -> dict[str, Any]:
    values = load_yaml(path)
    if not isinstance(values, dict):
        raise UserError("not a recipe", where=path, expected="a mapping of settings")
    return {str(key): value for key, value in values.items()}


def _fill_here(value: Any, folder: Path) -> Any:
    """Return `value` with {here} replaced by the recipe's own folder, so that a recipe can bring files along."""
    if isinstance(value, dict):
        return {key: _fill_here(item, folder) for key, item in value.items()}
    if isinstance(value, list):
        return [_fill_here(item, folder) for item in value]
    return value.replace("{here}", str(folder)) if isinstance(value, str) else value


def _merge(config: DictConfig, values: dict[str, Any], where: str) -> DictConfig:
    phases: list[dict[str, Any]] = OmegaConf.to_container(config.phases)  # type: ignore[assignment]
    if isinstance(values.get("phases"), dict):  # by name, as the command line has it
        values = {**values, "phases": with_changes(phases, values["phases"], where)}
    values = _checked(values, RunConfig, "", where)
    if "phases" not in values:
        check_not_in_phases(phases, values, where)
    return merged(config, one_length(values), where)


def _checked(values: dict[str, Any], owner: type, prefix: str, where: str) -> dict[str, Any]:
    """Return `values` if every key is a setting, with a lone string wrapped if a list is expected."""
    hints = get_type_hints(owner)
    result = {}
    for key, value in values.items():
        full = f"{prefix}{key}"
        if full == "phases":
            value = _checked_phases(value, where)
        if key not in hints:
            near = difflib.get_close_matches(full, setting_names(), n=3, cutoff=0.5)
            near += [
                n for n in setting_names() if n.split(".")[-1] == str(key).split(".")[-1] and n not in near
            ]
            expected = f"one of {', '.join(near)}" if near else "a setting that `maskmill settings` lists"
            raise UserError(f"unknown key {full}", where=where, expected=expected)
        if is_dataclass(hints[key]):
            if not isinstance(value, dict):
                raise UserError(f"{full} is a group of settings", where=where, expected=f"{full}.NAME=value")
            value = _checked(value, hints[key], f"{full}.", where)
        elif isinstance(value, dict):
            raise UserError(f"{full} is one setting, not a group", where=where, expected=f"{full}=value")
        elif str(hints[key]).startswith("list") and isinstance(value, str):
            value = [value] if value else []
        elif full != "phases" and isinstance(value, list) and any(isinstance(v, list | dict) for v in value):
            raise UserError(f"{full} is a list of values", where=where, expected=f"{full}=[a, b]")
        elif _optional(hints[key]) and value in (None, "null"):
            value = None  # unset, whatever a recipe that this one extends says
        elif value is None:
            raise UserError(f"{full} has no value", where=where, expected=f"{full}=value")
        elif hints[key] is str and isinstance(value, bool):
            value = "on" if value else "off"  # YAML reads these words as true and false
        result[key] = whole(value) if hints[key] is int else value
    return result


def _optional(hint: Any) -> bool:
    """Return whether a setting of this type may be unset."""
    return type(None) in get_args(hint)


def _checked_phases(phases: Any, where: str) -> list[dict[str, Any]]:
    """Return `phases` if it is a list of names with settings."""
    if not isinstance(phases, list) or not all(isinstance(p, dict) and p.get("name") for p in phases):
        raise UserError(
            "phases is a list", where=where, expected="[{name: NAME, train: {steps: 100}, ...}, ...]"
        )
    return [
        {"name": phase["name"]}
        | _checked(
            {k: v for k, v in phase.items() if k != "name"}, RunConfig, "", f"{where}, phase {phase['name']}"
        )
        for phase in phases
    ]


def setting_names(owner: type = RunConfig, prefix: str = "") -> list[str]:
    """List the dotted names of all settings, in the order of their declaration."""
    hints = get_type_hints(owner)
    names: list[str] = []
    for f in fields(owner):
        kind = hints[f.name]
        names += setting_names(kind, f"{prefix}{f.name}.") if is_dataclass(kind) else [f"{prefix}{f.name}"]  # type: ignore[arg-type]
    return names
