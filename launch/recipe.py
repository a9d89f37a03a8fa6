"""Load a checked RunConfig from a recipe's name or YAML path and `key=value` pairs, and list the shipped recipes.

Three merges: defaults <- recipe (after the one it `extends`) <- command line. Unknown keys are errors. What a Hugging
Face folder in init_from states is merged last, and contradicts no key of recipe and command line. The `key=value` pairs
of `maskmill evaluate` are read here as well.
"""

import ast
import difflib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, fields, is_dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

import yaml
from omegaconf import DictConfig, OmegaConf

from data_pipeline.errors import UserError, one_error, printable
from data_pipeline.fields import declared, unknown_key, value_of
from launch.recipes import RECIPES, recipe_names
from pretrain.config.aliases import called_here
from pretrain.config.phases import LENGTHS, leaves, one_length, phases_of
from pretrain.config.renamed import RENAMED, with_new_names
from pretrain.config.settings import ObjectiveSettings, RunConfig
from pretrain.config.yaml_files import check_shape, load_yaml, merged, refuse_odd, schema, typed
from pretrain.distributed.launch_env import SUPERVISOR, first_rank
from pretrain.objectives.registry import OBJECTIVES, registered
from pretrain.preflight.validate import wrong_settings
from pretrain.run.files import CONFIG
from pretrain.run.folder import read_config
from pretrain.tasks.settings import EvaluationSettings

# Merge what the Hugging Face folder in init_from states into the settings of a run.


def with_folder_settings(merged: DictConfig, given: set[str]) -> DictConfig:
    """Return the settings with those of the folder in place of defaults. `given`: the dotted keys that recipe and
    command line set, which stay. Raises UserError, listing both values of each, for those that contradict the folder.
    """
    source = os.path.expanduser(str(merged.init_from))
    if not source:
        return merged
    from pretrain.huggingface.folder import contradicts  # reads vocabularies

    stated = _stated(source, os.path.expanduser(str(merged.run.dir)))
    refuse_odd(stated, f"init_from={source}")
    differing = [
        f"{key}={OmegaConf.select(merged, key)} (there: {value})"
        for key, value in stated.items()
        if key in given and contradicts(key, OmegaConf.select(merged, key), value)
    ]
    if differing:
        raise UserError(
            f"is another model: {', '.join(differing)}",
            where=f"init_from={source}",
            remedy="leave these settings out, here and in the recipe: they are read from the folder",
        )
    for key, value in stated.items():
        if key not in given:
            OmegaConf.update(merged, key, value)
    return merged


def _stated(source: str, run: str) -> dict[str, Any]:
    """Return the settings that the folder states; if it is gone, those that the run in `run` read from it."""
    from pretrain.huggingface.folder import folder_settings  # reads vocabularies

    if "://" in source or os.path.exists(source):
        return {} if "://" in source else folder_settings(Path(source))
    if not (Path(run) / CONFIG).is_file():
        return {}
    before = read_config(Path(run))
    if before.init_from != source:
        return {}
    keys = [f"encoder.{name}" for name in vars(before.encoder)]
    keys += ["objective.name", "data.vocab", "vocabulary.kind", "vocabulary.specials"]
    return {key: value_of(before, key) for key in keys}


# Find a YAML file by the name of one that comes with Maskmill, or by its path.


def find_named(name: str, shipped: Path, names: Sequence[str], what: str) -> Path:
    """Return `shipped` if it is a file, or else the YAML file of the path `name`. `names`: those of all that come with
    Maskmill; `what`: a recipe or a study. Raises UserError, with the nearest names, where there is none."""
    if "/" not in name and is_file(shipped):
        return shipped
    path = Path(os.path.expanduser(name))
    if is_file(path) and path.suffix in (".yaml", ".yml"):
        return path
    near = difflib.get_close_matches(name, names, n=3)
    raise UserError(
        f"no such {what}",
        where=name,
        expected=f"a YAML file or one of {', '.join(names)}",
        remedy=f"did you mean {' or '.join(near)}?" if near else "",
    )


def is_file(path: Path) -> bool:
    """Return whether there is such a file; a name too long for a path is none."""
    try:
        return path.is_file()
    except OSError:
        return False


# Parse the `key=value` pairs of a command line.


def parse_override(override: str) -> dict[str, Any]:
    """Return {"a": {"b": "value"}} of a.b=value; a list where the value is in brackets, else a text. Raises UserError
    for anything else."""
    refuse_odd(override, "command line")
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise UserError(
            f"cannot read {override!r}", where="command line", expected="key=value, such as train.steps=100"
        )
    value: Any = text  # the typed merge converts text to numbers; YAML is for lists only
    if text.startswith("["):
        try:
            check_shape(text)
            value = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError):
            raise UserError(
                f"cannot read {override!r}", where="command line", expected=f"{key}=[a, b]"
            ) from None
        refuse_odd(value, "command line", key)  # escapes in quotes are read by now
    for part in reversed(key.split(".")):
        value = {part: value}
    parsed: dict[str, Any] = present_names(value, "command line")
    return parsed


_announced: set[tuple[str, str]] = set()
"""Old names with where they were."""


def present_names(values: Any, where: str) -> Any:
    """Return what a recipe, a study or a command line holds with settings under their new names, and print a line for
    each old one, once; what Maskmill itself started does not, since that did. Raises UserError for one that has both
    names."""
    values, old_names = with_new_names(values, where)
    for old in old_names:
        if (old, where) not in _announced and first_rank() and SUPERVISOR not in os.environ:
            print(printable(f"maskmill: {where}: {old} is now {RENAMED[old]}"), file=sys.stderr)
        _announced.add((old, where))
    return values


def whole(value: Any) -> Any:
    """Return 1000 for 1e3, 1000.0 or the text of either; leave anything that is not a whole number in decimals to
    the typed merge, which refuses it."""
    if not isinstance(value, float | str):
        return value
    try:
        number = float(value)
    except ValueError:
        return value
    if not number.is_integer() or (isinstance(value, str) and _is_int(value)):
        return value
    return int(number)


def _is_int(text: str) -> bool:
    """Return whether Python parses all digits of it: a float would round those of a large seed."""
    try:
        int(text)
    except ValueError:
        return False
    return True


# Read the `key=value` pairs of `maskmill evaluate`.


def read_changes(overrides: list[str]) -> dict[str, Any]:
    """Return the settings that the pairs change, typed. Raises UserError that lists all invalid ones."""
    names = {f.name: f.type for f in fields(EvaluationSettings)}
    changes: dict[str, Any] = {}
    wrong = []
    for override in overrides:
        try:
            (key, value), *_ = parse_override(override).items()
            if key not in names:
                raise unknown_key(key, names, "command line")
            value = whole(value) if names[key] is int else value
            base = OmegaConf.structured(EvaluationSettings)
            found = getattr(typed(merged(base, {key: value}, "command line"), "command line"), key)
            changes[key] = changes.get(key, {}) | found if isinstance(found, dict) else found
        except UserError as error:
            wrong.append(error)
    if wrong:
        raise one_error(wrong, where="command line")
    return changes


# Merge the phase settings of a command line or a child recipe into the phases of a recipe.


def as_typed(changes: dict[str, Any], typed: dict[str, Any]) -> dict[str, Any]:
    """Return `changes` with the values that the typed merge made of them."""
    return {
        key: as_typed(value, typed[key]) if isinstance(value, dict) else typed[key]
        for key, value in changes.items()
    }


def with_changes(phases: list[dict[str, Any]], changes: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """Return the phases after `changes`, name -> settings."""
    names = [str(phase["name"]) for phase in phases]
    for name, settings in changes.items():
        if name not in names:
            raise UserError(
                f"there is no phase {name!r}",
                where=where,
                expected=f"phases.NAME.KEY=value with NAME one of {', '.join(names)}"
                if names
                else "a recipe with phases",
            )
        if not isinstance(settings, dict):
            raise UserError(f"phases.{name} is a phase", where=where, expected=f"phases.{name}.KEY=value")
        place = names.index(name)
        phases[place] = _deep(phases[place], settings)
    return phases


def check_one_length(overrides: Iterable[str]) -> None:
    """Raise UserError if a command line sets both the steps and the minutes of a run or a phase."""
    pairs = (override.partition("=") for override in overrides)
    given = {key for key, _, value in pairs if value not in ("0", "0.0")}
    for key in sorted(given):
        if key.endswith("train.minutes") and (steps := key.removesuffix("minutes") + "steps") in given:
            raise UserError(
                f"{steps} and {key} both say how long to train",
                where="command line",
                remedy="leave one of them out",
            )


def _deep(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    result = dict(old)
    for key, value in new.items():
        if key in LENGTHS and LENGTHS[key] not in new:
            result.pop(LENGTHS[key], None)
        inner = result.get(key)
        result[key] = _deep(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return result


def check_not_in_phases(phases: list[dict[str, Any]], values: dict[str, Any], where: str) -> None:
    """Raise UserError for a setting that a phase sets itself: the value would be silently lost."""
    rivals = {f"train.{one}": f"train.{other}" for one, other in LENGTHS.items()}
    for key, _ in leaves(values):
        setting = [str(phase["name"]) for phase in phases if {key, rivals.get(key)} & {*dict(leaves(phase))}]
        if setting:
            raise UserError(
                f"{key} is a setting of the {'phases' if len(setting) > 1 else 'phase'} {' and '.join(setting)}",
                where=where,
                expected=f"phases.{setting[0]}.{key}=...",
            )


# Load a run: merge the recipe, those that it extends, and the command line, and check every key and value.


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
    given = {override.partition("=")[0] for override in overrides}
    return keys | {RENAMED.get(key, key) for key in given}


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
    return {str(key): value for key, value in present_names(values, str(path)).items()}


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
            if ours := called_here(full):
                raise UserError(f"unknown key {full}", where=where, remedy=f"Maskmill calls it {ours}")
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


def setting_names() -> list[str]:
    """List the dotted names of all settings, in the order of their declaration."""
    return [key for key, _ in declared(RunConfig)]


# List the shipped recipes by objective, with a line each, without importing torch.


class Listed(NamedTuple):
    """An objective, what it trains, and its shipped recipes."""

    objective: str
    what: str
    recipes: list[tuple[str, str]]
    """(name, what its comment says first)"""


def recipe_list() -> Iterator[Listed]:
    """Yield every objective in the registry's order."""
    names: dict[str, list[str]] = {objective: [] for objective in OBJECTIVES}
    for name in recipe_names():
        names[objective_of(name)].append(name)
    for objective, recipes in names.items():
        lines = [(name, first_sentence(_comment(find_recipe(name)), stops=".:")) for name in recipes]
        yield Listed(objective, first_sentence(_docstring(objective)), lines)


def objective_of(recipe: str) -> str:
    """Return the objective that a recipe, or the nearest one that it extends, names."""
    named = [values.get("objective", {}).get("name") for _, values in recipe_values(find_recipe(recipe))]
    return next((str(name) for name in reversed(named) if name), ObjectiveSettings().name)


def first_sentence(text: str, stops: str = ".") -> str:
    """Return `text` up to the first of `stops` before a space, on one line; a full stop after "al" is none."""
    text = " ".join(text.split())
    found = re.match(rf"(.*?)(?<!\bal)[{re.escape(stops)}](\s|$)", text)
    return found.group(1) if found else text


def _comment(path: Path) -> str:
    """Read the comment at the head of a recipe."""
    lines = path.read_text("utf-8").splitlines()
    head = next((n for n, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return "\n".join(line.lstrip("# ") for line in lines[:head])


def _docstring(objective: str) -> str:
    """Read the docstring of the objective's class from its source, importing which would import torch; that of its
    module where the class's does not begin with what it trains."""
    module, _, name = OBJECTIVES[objective].place.partition(":")
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text("utf-8"))
    classes = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    own = next((ast.get_docstring(node) or "" for node in classes), "")
    return own if own.startswith("Train ") else ast.get_docstring(tree) or ""
