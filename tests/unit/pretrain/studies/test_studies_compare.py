"""Arms are compared where that means something, at their own best values; the page says what is missing."""

import json
import math
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pretrain.studies.compare import (
    Comparison,
    cells_of_row,
    compare,
    holm,
    power,
    rows_of,
    seeds_needed,
    spread,
    verdict,
)
from pretrain.studies.design import Changes, Design, parse_design
from pretrain.studies.measured import Cell, Measured
from pretrain.studies.page import epoch_rows, write_study
from tests.factories.studies import FACTS, found_of, measured

SVG = "{http://www.w3.org/2000/svg}"


def design_of(seeds: int = 2, **other: Any) -> Design:
    arms = {"a": {"label": "the first"}, "b": {}, "c": {"published": {"held_out_mask_loss": 1.5}}}
    values = {"title": "T", "question": "Q?", "recipe": "demo", "arms": arms, **other}
    return parse_design("x", values, Changes(seeds=seeds), "x.yaml")


def test_an_arm_above_the_unigram_is_not_compared() -> None:
    runs = [measured("a", 1, 5.0), measured("a", 2, 5.1), measured("b", 1, 5.5), measured("b", 2, 6.2)]
    runs += [measured("c", 1, 4.0), measured("c", 2, 4.11)]
    rows = {row.arm: row for row in rows_of(design_of(), found_of(*runs))}
    assert rows["a"].reading == "reference"
    assert rows["b"].reading == "has learnt no context (1 of 2 seeds): not compared"
    assert rows["b"].comparison is None
    assert rows["c"].comparison is not None
    assert rows["c"].comparison.difference == pytest.approx(-0.995)
    assert cells_of_row(design_of(), rows["c"])[:4] == ["c", "2", "4.055 ± 0.078", "4.000 to 4.110"]
    assert cells_of_row(design_of(), rows["c"])[-1] == "1.5"
    rows = {row.arm: row for row in rows_of(design_of(needs_context=False), found_of(*runs))}
    assert rows["b"].comparison is not None


def test_a_reference_without_context_compares_nothing() -> None:
    runs = [measured("a", 1, 7.0), measured("a", 2, 5.1), measured("c", 1, 4.0), measured("c", 2, 4.1)]
    rows = {row.arm: row for row in rows_of(design_of(), found_of(*runs))}
    assert (rows["b"].reading, rows["c"].reading) == ("not measured", "not compared")


def test_an_arm_that_takes_a_model_without_context_is_not_compared_either() -> None:
    arms = {"a": {}, "b": {}, "c": {"model_of": "b", "segments": "1S"}}
    design = design_of(arms=arms, figures=["mrpc.accuracy"])
    runs = [measured(arm, seed, 7.0 if arm == "b" else 5.0) for arm in "ab" for seed in (1, 2)]
    runs += [Measured("c", seed, [], {}) for seed in (1, 2)]
    for one in runs:
        one.figures["mrpc.accuracy"] = 70.0 + one.seed
    readings = {row.arm: row.reading for row in rows_of(design, found_of(*runs))}
    assert readings["c"].startswith("has learnt no context")


def test_an_arm_of_two_models_is_judged_by_both() -> None:
    arms = {"a": {}, "b": {}, "both": {"model_of": "a", "beside": "b"}}
    design = design_of(arms=arms, figures=["mrpc.accuracy"])
    losses = {("a", 1): 7.0, ("b", 1): 7.0, ("b", 2): 7.0}  # a has learnt context with the second seed alone
    runs = [measured(arm, seed, losses.get((arm, seed), 5.0)) for arm in "ab" for seed in (1, 2)]
    runs += [Measured("both", seed, [], {"mrpc.accuracy": 70.0 + seed}) for seed in (1, 2)]
    row = next(row for row in rows_of(design, found_of(*runs)) if row.arm == "both")
    assert row.no_context == [1, 2]
    assert row.reading == "has learnt no context (2 of 2 seeds): not compared"


def test_arms_are_shown_at_their_own_best_value(tmp_path: Path) -> None:
    design = design_of(tune={"optim.lr": [0.1, 0.2, 0.4]}, arms={"a": {}, "b": {}})
    losses = {"a": (4.0, 3.0, 5.0), "b": (4.5, 4.0, 3.5)}
    runs = [
        measured(arm, 1, n, lr=lr)
        for arm, row in losses.items()
        for lr, n in zip((0.1, 0.2, 0.4), row, strict=True)
    ]
    runs += [measured("a", 2, 3.2, lr=0.2), measured("b", 2, 3.7, lr=0.4)]
    values = {row.arm: row.values for row in rows_of(design, found_of(*runs))}
    assert values == {"a": {1: 3.0, 2: 3.2}, "b": {1: 3.5, 2: 3.7}}
    write_study(tmp_path, design, [], found_of(*runs), FACTS)
    table = (tmp_path / "table.md").read_text()
    assert "| 0.2 | **3.000** | 4.000 |" in table
    assert "| 0.4 | 5.000 | **3.500** (an end of the grid) |" in table


def test_page_and_picture_of_a_study_that_was_cut_short(tmp_path: Path) -> None:
    runs = [measured("a", 1, 5.0), measured("a", 2, 5.1), measured("b", 1, 4.0)]
    cells = [Cell(arm, seed) for arm in "ab" for seed in (1, 2)]
    write_study(tmp_path, design_of(arms={"a": {"label": "<first>"}, "b": {}}), cells, found_of(*runs), FACTS)
    page = (tmp_path / "README.md").read_text()
    assert "- not measured: b-2 (no room)" in page
    assert "| b | 1 of 2 | 4.000 |" in page
    assert "one seed: cannot tell" in page
    assert "seed 1: masks abc" in page
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["missing"] == ["b-2"]
    assert [row["comparison"] and row["comparison"]["seeds"] for row in result["rows"]] == [None, 1]
    picture = ET.parse(tmp_path / "picture.svg").getroot()
    lines = [path for path in picture.iter(f"{SVG}path") if path.get("class") == "line faint"]
    assert len(lines) == 2  # the two seeds of the first arm, beside their mean
    assert "<first>" in {text.text for text in picture.iter(f"{SVG}text")}


def test_scores_without_curves_are_drawn_by_arm(tmp_path: Path) -> None:
    runs = [Measured(arm, seed, [], {"mrpc.accuracy": 70.0 + seed}) for arm in "ab" for seed in (1, 2)]
    design = design_of(figures=["mrpc.accuracy"], arms={"a": {}, "b": {}})
    write_study(tmp_path, design, [], found_of(*runs), FACTS)
    picture = ET.parse(tmp_path / "picture.svg").getroot()
    assert len(list(picture.iter(f"{SVG}circle"))) == 4
    assert "equal in every seed" in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize(
    ("there", "shows", "curves"), [("mrpc.accuracy", "mrpc, accuracy", 0), ("context_gain", "nats below", 2)]
)
def test_the_picture_is_of_the_first_figure_that_was_measured(
    tmp_path: Path, there: str, shows: str, curves: int
) -> None:
    """As where a treebank or a task of a study is not at hand."""
    runs = [measured(arm, seed, 5.0) for arm in "ab" for seed in (1, 2)]
    for one in runs:
        one.figures[there] = 1.25
    design = design_of(figures=["blimp.accuracy", there], arms={"a": {}, "b": {}})
    write_study(tmp_path, design, [], found_of(*runs), FACTS)
    assert f"![{shows}" in (tmp_path / "README.md").read_text()
    picture = ET.parse(tmp_path / "picture.svg").getroot()
    assert "a: 1.25" in picture.find(f"{SVG}desc").text
    lines = [path for path in picture.iter(f"{SVG}path") if path.get("class") == "line faint"]
    assert len(lines) == 2 * curves


def test_what_a_loss_comes_to_is_drawn_as_the_loss(tmp_path: Path) -> None:
    """And not as the next figure of the study that has curves."""
    runs = [measured(arm, seed, 5.0) for arm in "ab" for seed in (1, 2)]
    for one in runs:
        one.figures["context_gain"] = 1.25
        for point in one.curve:
            point["held_out_mask_accuracy"] = 0.5
    design = design_of(figures=["context_gain", "held_out_mask_accuracy"], arms={"a": {}, "b": {}})
    write_study(tmp_path, design, [], found_of(*runs), FACTS)
    said = ET.parse(tmp_path / "picture.svg").getroot().find(f"{SVG}desc").text
    assert said.startswith("held-out loss at [MASK] over tokens. nats below")
    assert "a: 1.25" in said


def test_a_table_ends_with_what_needs_no_input(tmp_path: Path) -> None:
    """Accuracies of 69 % are nothing where the commoner label has 68.4 %. It is left out where runs differ in it."""
    figures = ["mrpc.accuracy", "held_out.mask_loss"]
    runs = [
        Measured(
            arm, seed, [], dict.fromkeys(figures, 69.0), trivial={figures[0]: 68.38, figures[1]: float(seed)}
        )
        for arm in "ab"
        for seed in (1, 2)
    ]
    runs[0].trivial.clear()  # of a run that was measured before this was kept
    write_study(tmp_path, design_of(figures=figures, arms={"a": {}, "b": {}}), [], found_of(*runs), FACTS)
    first, second = (tmp_path / "table.md").read_text().split("**Held out")
    assert first.splitlines()[-2].startswith("| an answer without input |  | 68.38 |")
    assert "without input" not in second
    assert first.count("| b | 2 | 69.00") == 1
    assert "equal in every seed" in first


def test_the_same_difference_in_every_seed_is_not_told() -> None:
    runs = [
        Measured(arm, seed, [], {"mrpc.accuracy": 68.0 + (arm == "b")}) for arm in "ab" for seed in (1, 2)
    ]
    design = design_of(figures=["mrpc.accuracy"], arms={"a": {}, "b": {}})
    readings = {row.arm: row.reading for row in rows_of(design, found_of(*runs))}
    assert readings == {"a": "reference", "b": "as far apart in every seed"}


def test_a_page_names_the_days_and_machines_of_its_runs(tmp_path: Path) -> None:
    """Not those of drawing it, which may be years later and elsewhere."""
    places = [("H100, 16 cores", "2026-02-01"), ("2 cores", "2026-01-31"), ("", "")]
    runs = [
        Measured("a", n, [], {"mrpc.accuracy": 70.0}, machine=m, date=d) for n, (m, d) in enumerate(places)
    ]
    write_study(tmp_path, design_of(figures=["mrpc.accuracy"]), [], found_of(*runs), FACTS)
    said = "2026-01-31 to 2026-02-01; 2 cores; H100, 16 cores; `maskmill study x`."
    assert said in (tmp_path / "README.md").read_text()


def test_an_arm_that_was_run_and_lacks_a_figure_has_none() -> None:
    """As an arm without [SEP] has no attention to it: nothing is left to measure."""
    runs = [Measured("a", n, [], {"attention.sep": 1.0}) for n in (1, 2)]
    runs += [Measured("b", n, [], {}) for n in (1, 2)]
    rows = {row.arm: row.reading for row in rows_of(design_of(figures=["attention.sep"]), found_of(*runs))}
    assert (rows["b"], rows["c"]) == ("has none", "not measured")


def test_what_a_segment_is_to_the_other_is_in_nats_and_neither_better_nor_worse() -> None:
    figure, values = "pairs.cut_segment_b", {"a": (0.05, 0.0505, 0.0502), "b": (0.09, 0.0904, 0.0901)}
    runs = [
        Measured(arm, n, [], {figure: value}) for arm, of in values.items() for n, value in enumerate(of, 1)
    ]
    design = design_of(3, figures=[figure], arms={"a": {}, "b": {}})
    line = cells_of_row(design, rows_of(design, found_of(*runs))[1])
    assert line[2] == "0.090 ± 0.000"
    assert line[5].startswith("higher (p ")


def test_the_page_says_which_arms_were_checked_to_be_equal(tmp_path: Path) -> None:
    facts = replace(FACTS, equal={str(seed): {"masks": "abc", "weights": "def"} for seed in (1, 2)})
    design = design_of(equal={"masks": ["a", "c"], "weights": ["a", "b", "c"]})
    write_study(tmp_path, design, [], {}, facts)
    page = (tmp_path / "README.md").read_text()
    assert "equal in *the first*, *c*: seed 1: masks abc; seed 2: masks abc.\n" in page
    assert "equal in all arms: seed 1: weights def; seed 2: weights def.\n" in page


def test_scores_by_epoch_have_a_table_and_a_picture(tmp_path: Path) -> None:
    """Means over the seeds, as far as all of them were fine-tuned: one stopped early."""
    curves = {("a", 1): [10.0, 20.0, 30.0], ("a", 2): [20.0, 40.0], ("b", 1): [1.0], ("b", 2): [3.0]}
    runs = [
        Measured(arm, seed, [], {"ud.LAS": curve[-1]}, by_epoch={"ud.LAS": curve})
        for (arm, seed), curve in curves.items()
    ]
    design = design_of(figures=["ud.LAS"], arms={"a": {}, "b": {}})
    write_study(tmp_path, design, [], found_of(*runs), FACTS)
    page = (tmp_path / "README.md").read_text()
    table = page.partition("by epoch, means and ranges over seeds**\n\n")[2]
    assert table.splitlines()[:5] == [
        "| epoch | a (seeds: 2) | b (seeds: 2) |",
        "| --- | --- | --- |",
        "| 1 | 15.00 (10.00 to 20.00) | 2.00 (1.00 to 3.00) |",
        "| 2 | 30.00 (20.00 to 40.00) |  |",
        "",
    ]
    assert "![By epoch](epochs.svg)" in page
    picture = ET.parse(tmp_path / "epochs.svg").getroot()
    assert len(list(picture.iter(f"{SVG}circle"))) == 3
    assert len([path for path in picture.iter(f"{SVG}path") if path.get("class") == "line faint"]) == 4
    few = [one for one in runs if one.cell != Cell("a", 2)]
    _, (first, *_) = epoch_rows(design, found_of(*few), "ud.LAS")
    assert first == ["1", "10.00", "2.00 (1.00 to 3.00)"], "one seed has no range"
    assert epoch_rows(design, found_of(*few), "ud.LAS")[0][1] == "a (seeds: 1 of 2)"


def test_nothing_measured_is_said(tmp_path: Path) -> None:
    write_study(tmp_path, design_of(), [Cell("a", 1)], {}, FACTS)
    assert "Nothing has been measured yet." in (tmp_path / "README.md").read_text()
    assert not (tmp_path / "picture.svg").exists()


@pytest.mark.parametrize(
    ("found", "figure", "said"),
    [
        (Comparison(3, -0.1, -0.2, -0.05, 0.01, 0), "held_out_mask_loss", "better (p 0.01)"),
        (Comparison(3, -0.1, -0.2, -0.05, 0.0001, 0), "mrpc.accuracy", "worse (p < 0.001)"),
        (Comparison(3, 0.1, -0.2, 0.4, 0.3, 12), "held_out_mask_loss", "would take about 12 seeds"),
        (Comparison(3, 0.1, -0.2, 0.4, 0.9, -1), "held_out_mask_loss", "would take more than 1,000 seeds"),
        (Comparison(1, 0.1, 0.1, 0.1, 0.9, 0), "held_out_mask_loss", "one seed: cannot tell"),
    ],
)
def test_verdicts(found: Comparison, figure: str, said: str) -> None:
    assert said in verdict(found, figure)


# Differences are tested in pairs, and corrected for their number; how many seeds would tell is what theory says.


def test_a_pair_cancels_what_a_seed_does_to_both() -> None:
    """Seeds differ by whole nats, arms by a tenth: unpaired, nothing would be told."""
    reference = {1: 3.0, 2: 4.0, 3: 5.0, 4: 6.0}
    noise = {1: 0.01, 2: -0.01, 3: 0.005, 4: -0.005}
    found = compare(reference, {"arm": {seed: reference[seed] - 0.1 + noise[seed] for seed in reference}})[
        "arm"
    ]
    assert found.told
    assert found.difference == pytest.approx(-0.1)
    assert found.low < -0.1 < found.high < 0
    assert (found.seeds, found.needed) == (4, 0)
    # t by hand: mean / (sd / sqrt(n))
    deviation = np.std([0.01, -0.01, 0.005, -0.005], ddof=1)
    assert found.high + 0.1 == pytest.approx(3.182446 * deviation / 2, rel=1e-5)


def test_only_seeds_that_both_have_are_pairs() -> None:
    found = compare({1: 1.0, 2: 1.0}, {"arm": {2: 2.0, 3: 9.0}})["arm"]
    assert (found.seeds, found.difference) == (1, 1.0)
    assert math.isnan(found.p)
    assert not found.told


def test_what_is_not_told_says_how_many_seeds_would() -> None:
    found = compare({1: 0.0, 2: 0.0, 3: 0.0}, {"arm": {1: 1.5, 2: -0.5, 3: 0.5}})["arm"]
    assert not found.told
    assert found.needed == seeds_needed(0.5, 1.0) == 34  # of textbooks: d = 0.5, two-sided 5 %, power 80 %
    assert power(0.5, 1.0, 33) < 0.8 <= power(0.5, 1.0, 34)
    assert seeds_needed(1e-4, 1.0) == -1


def test_runs_without_any_spread_tell_nothing() -> None:
    """Two of 400 examples more in each seed are chance, whatever a t-test without spread would say."""
    found = compare({1: 1.0, 2: 1.0}, {"same": {1: 1.0, 2: 1.0}, "other": {1: 1.5, 2: 1.5}})
    assert (found["same"].p, found["other"].p) == (1.0, 1.0)
    assert not found["other"].told
    assert found["other"].difference == 0.5
    rounded = compare({1: 68.38, 2: 68.87, 3: 69.36}, {"a": {1: 68.87, 2: 69.36, 3: 69.85}})["a"]
    assert len({68.87 - 68.38, 69.36 - 68.87, 69.85 - 69.36}) > 1  # but for rounding
    assert (rounded.p, rounded.low, rounded.needed) == (1.0, rounded.high, 0)


def test_p_is_corrected_for_the_number_of_arms() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    reference, arm = {1: 0.0, 2: 0.0, 3: 0.0}, {1: 1.0, 2: 1.1, 3: 1.3}
    alone = compare(reference, {"a": arm})["a"].p
    noise = {str(n): {1: 1.0, 2: -1.0, 3: 0.1 * n} for n in range(1, 6)}
    assert compare(reference, {"a": arm, **noise})["a"].p == pytest.approx(6 * alone)


def test_the_spread_of_one_and_of_what_is_not_finite() -> None:
    assert spread([1.0, 3.0]) == (2.0, pytest.approx(math.sqrt(2)))
    assert math.isnan(spread([1.0])[1])
    assert spread([1.0, math.inf])[0] == math.inf
