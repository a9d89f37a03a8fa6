"""Differences are tested in pairs, and corrected for their number; how many seeds would tell is what theory says."""

import math

import numpy as np
import pytest

from pretrain.studies.compare import compare, holm, power, seeds_needed, spread


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
