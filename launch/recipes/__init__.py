"""List the recipes that ship with Maskmill, without the heavy imports of launch.recipe."""

from pathlib import Path

RECIPES = Path(__file__).parent


def recipe_names() -> list[str]:
    """Return the names that a RECIPE argument may have."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))
