"""List the recipes that ship with Maskmill; apart from launch.settings.recipe, which imports what it takes to read
them."""

from pathlib import Path

RECIPES = Path(__file__).parent


def recipe_names() -> list[str]:
    """The names that a RECIPE argument may have."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))
