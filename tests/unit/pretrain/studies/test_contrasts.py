"""Sums of arms: main effects and interactions."""

from pathlib import Path

import pytest

from data_pipeline.errors import UserError
from launch.studies.read import read_design
from pretrain.studies.compare import contrasts_of, rows_of
from pretrain.studies.design import Changes, Design, parse_design
from pretrain.studies.measured import Measured
from pretrain.studies.page import write_study
from tests.factories.studies import FACTS, found_of, measured

EFFECT = {"ab": 0.5, "a": 0.5, "b": -0.5, "none": -0.5}
INTERACTION = {"ab": 1, "a": -1, "b": -1, "none": 1}


def design_of(seeds: int = 3, arms: tuple[str, ...] = (), **contrasts: object) -> Design:
    contrasts = contrasts or {"a, minus none": EFFECT, "a with b": INTERACTION}
    names = ("ab", "a", "b", "none", "more")
    values = {"title": "T", "question": "Q?", "recipe": "demo", "arms": {name: {} for name in names}}
    return parse_design("x", {**values, "contrasts": contrasts}, Changes(seeds=seeds, arms=arms), "x.yaml")


def runs_of(without: str = "") -> list[Measured]:
    """Three seeds, each with a level of its own: a takes 0.3 off, b nothing, both together 0.1 less than a alone."""
    losses = {"ab": 2.8, "a": 2.7, "b": 3.0, "none": 3.0}
    noise = {1: 0.0, 2: 0.02, 3: -0.01}
    return [
        measured(
            arm, seed, 7.0 if arm == without and seed == 2 else loss + 0.5 * seed + noise[seed] * (arm == "a")
        )
        for arm, loss in losses.items()
        for seed in noise
    ]


def test_main_effect_and_interaction_are_sums_of_a_seeds_runs() -> None:
    """What a seed does to all of them cancels."""
    design = design_of()
    effect, interaction = contrasts_of(design, rows_of(design, found_of(*runs_of())))
    assert (effect.name, effect.figure) == ("a, minus none", "held_out_mask_loss")
    assert effect.comparison.difference == pytest.approx(-0.25 + 0.01 / 6)
    assert interaction.comparison.difference == pytest.approx(0.1 - 0.01 / 3)
    assert effect.comparison.seeds == 3
    assert effect.comparison.told
    assert effect.cells[-1].startswith("better (p ")


def test_p_is_corrected_over_the_contrasts() -> None:
    rows = rows_of(design_of(), found_of(*runs_of()))
    two = contrasts_of(design_of(), rows)
    alone = [
        contrasts_of(design_of(**{name: weights}), rows)[0] for name, weights in design_of().contrasts.items()
    ]
    smaller, larger = sorted(range(2), key=lambda n: alone[n].comparison.p)
    assert two[smaller].comparison.p == pytest.approx(2 * alone[smaller].comparison.p)
    assert two[larger].comparison.p >= alone[larger].comparison.p


@pytest.mark.parametrize("lacking", ["no context", "no run"])
def test_an_arm_that_lacks_a_run_or_context_leaves_its_contrasts_out(lacking: str) -> None:
    runs = runs_of(without="b") if lacking == "no context" else runs_of()[:-1]
    assert contrasts_of(design_of(), rows_of(design_of(), found_of(*runs))) == []


def test_a_form_without_an_arm_has_none_of_its_contrasts() -> None:
    assert design_of(arms=("ab", "a", "b")).contrasts == {}


@pytest.mark.parametrize(
    "weights", [{"a": 1, "b": 1}, {"a": 0}, {"a": "1", "b": -1}, {"a": 1, "unknown": -1}]
)
def test_weights_that_compare_nothing_are_refused(weights: dict[str, object]) -> None:
    with pytest.raises(UserError, match="contrast 'c'"):
        design_of(c=weights)


def test_the_page_has_them_below_their_figure(tmp_path: Path) -> None:
    write_study(tmp_path, design_of(), [], found_of(*runs_of()), FACTS)
    page = (tmp_path / "README.md").read_text()
    assert "| contrast | seeds | difference (95 %) | reading |" in page
    assert "| a, minus none | 3 | -0.248 (" in page


def test_sep_has_the_effects_of_its_four_cells() -> None:
    assert [len(each) for each in read_design("sep", Changes()).contrasts.values()] == [4, 4, 4]
