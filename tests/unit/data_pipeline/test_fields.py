"""Settings declare the values that they may have, and one checker lists all that are none of them."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from data_pipeline.errors import UserError
from data_pipeline.fields import MOST, made, setting, wrong_values


@dataclass
class Inner:
    share: float = setting(0.1, above=0, below=1, also=(-1,))
    kind: str = setting("", one_of=("", "a", "b"), refused={"c": ("was removed", "take b")})
    betas: list[float] = setting([0.9, 0.99], entries=2, at_least=0, below=1)


@dataclass
class Outer:
    name: str
    count: int = setting(3, at_least=1, hint="leave it out")
    free: float = 0.0
    weights: list[float] = setting([], above=0, at_most=9)
    sequences: str = setting("segment_pair", one_of="data_pipeline.sequences.registry:SEQUENCES")
    inner: Inner = field(default_factory=Inner)


@pytest.mark.parametrize(
    ("inner", "outer", "lines"),
    [
        ({}, {"free": -1e30, "weights": [9.0], "count": MOST}, []),
        ({"share": -1, "kind": "a", "betas": [0, 0]}, {}, []),
        ({"share": 1}, {}, ["inner.share: must be in (0, 1), or -1, got 1"]),
        ({"share": float("nan")}, {}, ["inner.share: must be in (0, 1), or -1, got nan"]),
        ({"kind": "x"}, {}, ["inner.kind: must be one of a, b, or empty, got x"]),
        ({"kind": "c"}, {}, ["inner.kind: c was removed (take b)"]),
        ({"betas": [0.5]}, {}, ["inner.betas: must be 2 numbers in [0, 1), got [0.5]"]),
        ({}, {"count": 0}, ["count: must be at least 1, got 0 (leave it out)"]),
        ({}, {"count": MOST + 1}, [f"count: must be in [1, {MOST}], got {MOST + 1} (leave it out)"]),
        ({}, {"weights": [1, 10, 0]}, ["weights: each must be in (0, 9], got 10"]),
        ({"kind": "x"}, {"count": 0}, ["count: must be", "inner.kind: must be"]),
    ],
)
def test_every_value_out_of_range_is_listed(
    inner: dict[str, Any], outer: dict[str, Any], lines: list[str]
) -> None:
    found = [str(error) for error in wrong_values(Outer("x", **outer, inner=Inner(**inner)))]
    assert [line[: len(start)] for line, start in zip(found, lines, strict=True)] == lines


def test_the_names_of_a_registry_are_its_keys() -> None:
    [error] = wrong_values(Outer("x", sequences="pairs"))
    assert str(error).startswith("sequences: must be one of segment_pair, sentence_pair,")


def test_defaults_that_are_lists_are_not_shared() -> None:
    Outer("x").weights.append(1.0)
    assert Outer("x").weights == []


def test_a_mapping_becomes_settings_or_all_its_mistakes() -> None:
    assert made(Outer, {"name": "x", "count": 2}, "here").count == 2
    with pytest.raises(UserError) as caught:
        made(Outer, {"count": 0, "cuont": 2, "sequences": 3}, "here")
    assert str(caught.value).splitlines() == [
        "here: 4 are wrong:",
        "  here: unknown key cuont (expected one of count)",
        "  here: has no name",
        "  here, count: must be at least 1, got 0 (leave it out)",
        "  here, sequences: must be a text, got 3",
    ]
    with pytest.raises(UserError, match="here, count: must be a whole number, got True"):
        made(Outer, {"name": "x", "count": True}, "here")
