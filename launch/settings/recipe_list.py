"""List the shipped recipes by objective, with a line each, without importing torch."""

import ast
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from launch.recipes import recipe_names
from launch.settings.recipe import find_recipe, recipe_values
from pretrain.config.settings import ObjectiveSettings
from pretrain.objectives.registry import OBJECTIVES


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
    """Read the docstring of the objective's module from its source: importing it would import torch."""
    module = OBJECTIVES[objective].place.partition(":")[0]
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text("utf-8"))
    return ast.get_docstring(tree) or ""
