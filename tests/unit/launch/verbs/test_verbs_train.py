"""For how many GPUs `maskmill plan` plans: as many as the ranks that `maskmill train` would start."""

import json
from pathlib import Path

import pytest

from data_pipeline.errors import UserError
from launch.recipe import given_settings
from launch.verbs.train import USUAL_GPUS, gpus_of_a_node
from tests.command_line import Maskmill


def test_the_ranks_of_the_command_line_are_its_gpus(maskmill: Maskmill) -> None:
    values = json.loads(maskmill("plan", "bert_tiny", "run.ranks=2", "--json").stdout)
    assert (values["nodes"], values["gpus_per_node"]) == (1, 2)


@pytest.mark.parametrize(
    ("ranks", "overrides", "nodes", "asked", "gpus"),
    [
        (0, [], 1, None, USUAL_GPUS),
        (0, [], 4, 2, 2),
        (2, [], 1, None, 2),  # the recipe's
        (2, [], 1, 4, 4),
        (2, [], 4, None, USUAL_GPUS),  # on several machines its ranks are not for a recipe to say
        (8, ["run.ranks=8"], 4, None, 2),
        (8, ["run.ranks=8"], 1, 8, 8),
    ],
)
def test_options_come_first(
    ranks: int, overrides: list[str], nodes: int, asked: int | None, gpus: int
) -> None:
    assert gpus_of_a_node(ranks, overrides, nodes, asked) == gpus


@pytest.mark.parametrize(("nodes", "asked"), [(1, 4), (2, 8), (3, None)])
def test_a_contradiction_is_refused_in_one_line(nodes: int, asked: int | None) -> None:
    with pytest.raises(UserError, match=rf"run\.ranks=8 contradicts --nodes {nodes}") as refused:
        gpus_of_a_node(8, ["train.steps=9", "run.ranks=8"], nodes, asked)
    assert len(str(refused.value).splitlines()) == 1


def test_what_a_recipe_sets_is_known_with_what_it_extends(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("extends: demo\ntrain: {steps: 4}\n")
    assert {"run.ranks", "train.steps", "optim.lr"} <= given_settings(
        str(tmp_path / "own.yaml"), ["optim.lr=1e-3"]
    )
    assert "run.ranks" not in given_settings("bert_base", [])
