"""One thing has one name: keys, recipes, verbs and options that the pages, the recipes' comments and the batch scripts
speak of are those of the command line."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
import typer.main

from launch import cli
from launch.recipe import setting_names
from launch.recipes import RECIPES, recipe_names
from pretrain.config.settings import RunConfig
from tests.command_line import ROOT

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "slurm").glob("*.sbatch")),
    *sorted(RECIPES.glob("*.yaml")),
]
OTHERS = {"vocabulary.sha256", "objective.smoothed"}  # of index.json; of the page that adds it
FILES = "py|md|json|jsonl|yaml|sbatch|tar|npy|txt|html|log|svg|tsv|csv|conll|iob2"
GROUPS = [
    f.name
    for f in fields(RunConfig)
    if f.name not in ("init_from", "init_moments", "init_positions", "init_new_words", "phases")
]
VERBS = dict(typer.main.get_command(cli.app).commands.items())  # type: ignore[attr-defined]


def text_of(page: Path) -> str:
    """Without Python, in which `data.out` may be anything."""
    return re.sub(
        r"^```python\n.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_keys_and_verbs_are_those_of_the_command_line(page: Path) -> None:
    text = text_of(page)
    keys = re.findall(rf"(?<![\w./-])((?:{'|'.join(GROUPS)})\.(?!(?:{FILES})\b)[a-z]\w*)(?!\w*[/(<])", text)
    known = {*setting_names(), *(name.rpartition(".")[0] for name in setting_names()), *OTHERS}
    unknown = set(keys) - known  # of objective.NAME.KEY, objective.NAME is read
    assert not unknown
    for verb, rest in re.findall(r"(?:^|[`>\"] ?|^ +)maskmill ([a-z]+)\b([^`\n]*)", text, re.MULTILINE):
        assert verb in VERBS, f"{page.name} speaks of maskmill {verb}"
        options = ([*one.opts, *one.secondary_opts] for one in VERBS[verb].params)
        known = {"--help"}.union(*options)
        assert set(re.findall(r"(?<!\S)(--[a-z-]+)", rest.partition("#")[0])) <= known, (
            f"maskmill {verb}{rest}"
        )


def test_recipes_that_the_readme_names_ship() -> None:
    models = text_of(ROOT / "README.md").partition("## Models")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(\w+)`", models))
    assert len(named) > 20
    assert named <= set(recipe_names())
