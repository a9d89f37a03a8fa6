"""Runs that share examples, masks or weights have the same hashes, and those that do not have others."""

from typing import Any

import pytest

from data_pipeline.errors import UserError
from launch.recipe import load_config
from pretrain.studies.measured import by_arms, check_equal, hashes_of

KINDS = ("examples", "masks", "weights", "content", "content_masks")


def hashed(tiny: list[str], *settings: str) -> dict[str, Any]:
    config = load_config("demo", [*tiny, "run.dir=unused", "run.ranks=1", "train.steps=6", *settings])
    return hashes_of(config, KINDS)


def equal_kinds(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
    return {kind for kind in KINDS if one[kind] == other[kind]}


def test_what_settings_change(tiny: list[str]) -> None:
    first = hashed(tiny)
    assert set(first) == set(KINDS)
    assert equal_kinds(first, hashed(tiny, "optim.lr=0.5", "train.micro_batch=6")) == set(KINDS)
    assert equal_kinds(first, hashed(tiny, "run.seed=7")) == set()
    masks = hashed(tiny, "data.dynamic_masking=true")
    assert equal_kinds(first, masks) == {"examples", "weights", "content"}
    assert equal_kinds(first, hashed(tiny, "encoder.intermediate=32")) == set(KINDS) - {"weights"}


def test_all_phases_count(tiny: list[str]) -> None:
    def of(*phases: str) -> dict[str, Any]:
        return hashed(tiny, f"phases=[{', '.join(phases)}]")

    first, short, long = (
        f"{{name: {name}, train: {{steps: {steps}}}}}" for name, steps in (("a", 3), ("b", 3), ("b", 4))
    )
    assert equal_kinds(of(first, short), of(first, short)) == set(KINDS)
    assert equal_kinds(of(first, short), of(first, long)) == {"weights"}
    assert equal_kinds(of(first, short), of(short, first.replace("3", "4"))) == {"weights"}


def test_arms_that_differ_are_refused(tiny: list[str]) -> None:
    first, second = hashed(tiny), hashed(tiny, "encoder.layers=1", "data.dynamic_masking=true")
    both = ("a", "b")
    said = check_equal({"a": first, "b": second}, {"examples": both, "shared_weights": both}, 1, "study x")
    assert said["examples"] == first["examples"][:12]
    with pytest.raises(
        UserError, match=r"arms a and b must have the same masks, and differ in it with seed 3"
    ):
        check_equal({"a": first, "b": second}, {"masks": both}, 3, "study x")
    with pytest.raises(UserError, match=r"differ in encoder\.layers\.1\."):
        check_equal({"a": first, "b": second}, {"weights": both}, 1, "study x")


def test_some_arms_may_be_equal_in_what_others_are_not() -> None:
    """An arm that no kind names has no hashes."""
    hashes = {"a": {"masks": "1" * 64}, "b": {"masks": "2" * 64, "examples": "3"}, "c": {"masks": "1" * 64}}
    equal = {"masks": ("a", "c"), "examples": ("b",)}
    assert check_equal(hashes, equal, 1, "x") == {"masks": "1" * 12, "examples": "3"}
    with pytest.raises(UserError, match="arms b and c must have the same masks"):
        check_equal(hashes, {"masks": ("b", "c")}, 1, "x")
    assert by_arms({**equal, "weights": ("a", "c")}) == {
        ("a", "c"): ["masks", "weights"],
        ("b",): ["examples"],
    }
