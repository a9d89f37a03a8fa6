"""A slice of `make fuzz`, the same cases at every run, and what it has found once."""

from pathlib import Path

import pytest
import yaml

from data_pipeline.errors import UserError
from launch.recipe import load_config
from pretrain.config.yaml_files import DEPTH, check_shape
from tests.faults.fuzz import fuzz
from tests.faults.parsers import PARSERS

pytestmark = pytest.mark.slow

SLICE = 1300
"""Cases of all parsers together."""
DOUBLED = "a: &a0 [x, x]\n" + "".join(f"b{n}: &a{n + 1} [*a{n}, *a{n}]\n" for n in range(30))


@pytest.mark.parametrize("name", PARSERS)
def test_what_is_changed_at_random_is_refused_or_read_rightly(name: str, tmp_path: Path) -> None:
    cases = SLICE * PARSERS[name][2] // sum(share for _, _, share in PARSERS.values())
    found = fuzz(name, cases, 1, tmp_path / "fuzz")
    assert found.wrong == []
    assert 0 < found.refused <= found.cases == cases


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: " + "[" * 60_000, "nested deeper"),  # ended the process: the parser recurses in C
        ("a: " + "{b: " * 60_000, "nested deeper"),
        (DOUBLED, "values"),
        ("a: &a [*a]", "an alias within itself"),
        ("optim: {betas: [0.9, {a: 1}]}", "optim.betas is a list of values"),
        ("extends: demo\nphases: [{name: a, optim: {betas: [[0.9], 0.9]}}]", "optim.betas is a list of values"),
        ("extends: " + "x" * 5000, "no such recipe"),
        ("run: {dir: " + "1" * 5000 + "}", "4300 digits"),
    ],
    ids=str.split("deep-list deep-table aliases-of-aliases circle table-in-list list-in-list long-name no-number"),
)  # fmt: skip
def test_a_recipe_beyond_reason_is_one_line(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(UserError, match=says) as caught:
        load_config(str(tmp_path / "recipe.yaml"), [])
    assert "recipe.yaml" in str(caught.value) or "x" * 100 in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_deep_override_is_one_line() -> None:
    with pytest.raises(UserError, match="cannot read"):
        load_config("demo", ["data.sources=" + "[" * 60_000])


def test_anchors_of_a_person_are_read() -> None:
    check_shape("a: &x {b: [1, 2]}\nc: *x\nd: {<<: *x, e: 3}\n")
    check_shape("[" * (DEPTH - 2) + "]" * (DEPTH - 2))
    with pytest.raises(yaml.YAMLError):
        check_shape("[" * DEPTH + "]" * DEPTH)
