"""`maskmill train --list` shows every objective and recipe with a line each, and does not wait for torch."""

import subprocess
import sys

import pytest

from launch.recipe import first_sentence, load_config, objective_of, recipe_list
from launch.recipes import recipe_names
from pretrain.objectives.registry import OBJECTIVES
from tests.command_line import ROOT, command, environ


def test_lists_every_objective_and_every_recipe_once() -> None:
    listed = list(recipe_list())
    assert [entry.objective for entry in listed] == list(OBJECTIVES)
    assert sorted(name for entry in listed for name, _ in entry.recipes) == recipe_names()
    for entry in listed:
        assert entry.what.startswith("Train ")
        assert entry.recipes, f"{entry.objective} has no recipe"
        assert all(len(line) > 10 for _, line in entry.recipes)


@pytest.mark.parametrize("recipe", ["demo", "mlm_tiny", "causal_tiny", "electra_large"])
def test_finds_the_objective_through_extended_recipes(recipe: str) -> None:
    assert objective_of(recipe) == load_config(recipe, []).objective.name


def test_first_sentence_ends_at_a_stop_but_not_after_et_al() -> None:
    assert first_sentence("One (Liu et al. 2019)\n of two. Three.") == "One (Liu et al. 2019) of two"
    assert first_sentence("One: two. Three.", stops=".:") == "One"
    assert first_sentence("No stop at 1.5") == "No stop at 1.5"


def test_command_prints_the_list_without_a_recipe() -> None:
    done = subprocess.run(
        command("train", "--list"), capture_output=True, text=True, cwd=ROOT, env=environ(), check=True
    )
    lines = done.stdout.splitlines()
    assert any(line.startswith("causal: Train a left-to-right") for line in lines)
    assert any(line.split()[:1] == ["bert_base"] for line in lines)


def test_listing_does_not_import_torch() -> None:
    code = "import sys; from launch.recipe import recipe_list; list(recipe_list())"
    code += "; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environ(), check=True)
