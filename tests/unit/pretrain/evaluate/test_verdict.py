"""What is said of a run's learning: never more than its figures show, and nothing where all is well."""

from typing import Any

import pytest

from pretrain.run.metrics import (
    PAIRS,
    PLATEAU,
    RISEN,
    Finding,
    Losses,
    findings,
    guess,
    leading,
    leads_alone,
    perplexity,
    secondary,
    sum_of,
    with_majority,
)

DEMO = {
    "held_out_mask_loss": 3.0, "held_out_mask_unigram_loss": 5.88, "held_out_mask_accuracy": 0.47,
    "held_out_mask_majority": 0.051, "held_out_mask_top_share": 0.06, "held_out_mask_top_token": ",",
    "held_out_mlm_loss": 2.8, "held_out_kept_loss": 0.81, "held_out_kept_accuracy": 0.9,
    "held_out_random_loss": 7.18, "held_out_random_accuracy": 0.03, "held_out_loss": 3.1,
    "held_out_nsp_loss": 0.3, "held_out_nsp_accuracy": 0.92, "held_out_nsp_majority": 0.576,
}  # fmt: skip
"""Figures of a run that has learnt something."""
COPIER = {
    **DEMO, "held_out_mask_loss": 6.485, "held_out_mask_unigram_loss": 6.43, "held_out_mask_top_share": 0.97,
    "held_out_mlm_loss": 5.97,
}  # fmt: skip
"""Figures of a run that has learnt to copy what it sees."""


def kinds(figures: dict[str, Any], ends: tuple[float, float] | None = None) -> list[str]:
    return [finding.kind for finding in findings(figures, ends)]


def test_a_run_that_learns_is_left_alone() -> None:
    assert findings(DEMO, (9.7, 3.1)) == []
    assert findings({}) == []
    assert findings({"held_out_mlm_loss": 5.0, "unigram_entropy": 6.0}) == [], "an older run"


def test_a_copier_has_learnt_no_context_whatever_its_loss_over_all_tokens() -> None:
    (found,) = findings(COPIER)
    assert found.kind == PLATEAU
    for words in ("No context has been learnt yet", "6.485", "6.430", '","', "97%"):
        assert words in found.what, words
    for setting in ("data.sequence_length", "more steps", "optim.lr"):
        assert setting in str(found), setting


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"held_out_mask_loss": 5.88}, [PLATEAU]),
        ({"held_out_mask_loss": 5.87}, []),
        ({"held_out_mask_loss": None, "held_out_mask_top_share": 0.51}, [PLATEAU]),
        ({"held_out_mask_top_share": 0.5}, []),
        ({"held_out_mask_top_share": 0.6, "held_out_mask_top_token": None}, [PLATEAU]),
        ({"held_out_nsp_accuracy": 0.58}, [PAIRS]),  # within a point, where the number of pairs is not known
        ({"held_out_nsp_accuracy": 0.59}, []),
        (
            {"held_out_nsp_accuracy": 0.60, "held_out_pairs": 1000},
            [PAIRS],
        ),  # two standard errors are 3.1 points
        ({"held_out_nsp_accuracy": 0.61, "held_out_pairs": 1000}, []),
        ({"held_out_nsp_accuracy": 0.579, "held_out_pairs": 10**6}, []),
        ({"held_out_nsp_majority": None, "held_out_nsp_accuracy": 0.1}, []),
        ({"held_out_mask_loss": float("nan"), "held_out_mask_top_share": "x"}, []),
    ],
)
def test_each_finding_has_its_border(change: dict[str, Any], found: list[str]) -> None:
    assert kinds({**DEMO, **change}) == found


def test_a_loss_that_rose_is_told() -> None:
    assert kinds(DEMO, (9.7, 12.3)) == [RISEN]
    assert kinds(DEMO, (9.7, 9.75)) == [], "noise"
    (found,) = findings({}, (9.7, 12.3))
    assert "12.300, and 9.700 at the beginning" in found.what
    assert "optim.lr" in found.remedy


def losses(*lines: dict[str, Any]) -> tuple[float, float] | None:
    seen = Losses()
    for line in lines:
        seen.add(line)
    return seen.ends


def test_the_ends_of_a_run() -> None:
    train = [
        {"kind": "train", "step": i, "loss": loss}
        for i, loss in enumerate((9.0, 30.0, 8.0, 7.0, 6.0, 6.5, 50.0))
    ]
    assert losses() is None
    assert losses(train[0]) is None, "one line has no other end"
    assert losses(*train) == (9.0, 7.0), "the median of the newest lines: one wild batch is no end"
    at_start = {"kind": "eval", "step": 0, "held_out_loss": 9.5}
    assert losses(at_start, *train) == (9.0, 7.0)
    assert losses(at_start, *train, {"kind": "eval", "step": 7, "held_out_loss": 12.0}) == (9.5, 12.0)
    assert losses({"kind": "trust", "step": 1}, {"step": 1, "loss": None}, {"step": 2, "loss": "x"}) is None


def test_figures_stand_beside_their_baselines() -> None:
    assert [str(score) for score in leading(DEMO)] == [
        "loss 3.000 (unigram 5.880)", "accuracy 47.0% (most frequent token 5.1%)", "perplexity 20.1 (unigram 358)",
        "NSP accuracy 92.0% (commoner label 57.6%)",
    ]  # fmt: skip
    trained = {"mask_loss": 3.0, "mask_accuracy": 0.4, "kept_loss": 0.8, "mlm_loss": 3.2, "loss": 3.2}
    assert [str(score) for score in leading(trained, prefix="")] == [
        "loss 3.000",
        "accuracy 40.0%",
        "perplexity 20.1",
    ]
    assert leading({}) == []
    assert [str(score) for score in leading({"held_out_disc_accuracy": 0.9}, headline="disc_accuracy")] == [
        "disc accuracy 90.0%"
    ]


def test_an_area_under_the_curve_leads_beside_that_of_a_guess() -> None:
    found = {"rtd_auc": 0.71, "rtd_loss": 0.4, "rtd_accuracy": 0.86, "rtd_majority": 0.85, "mask_loss": 5.0}
    held_out = {f"held_out_{name}": value for name, value in found.items()}
    assert [str(score) for score in leading(held_out, headline="rtd_auc")] == [
        "RTD AUC 0.710 (a guess 0.500)",
        "RTD loss 0.400",
        "RTD accuracy 86.0% (commonest answer 85.0%)",
    ]
    assert str(leading(found, prefix="", headline="rtd_auc")[0]) == "RTD AUC 0.710"
    assert [leads_alone(name) for name in ("rtd_auc", "rtd_accuracy", "mask_loss", "own")] == [
        True,
        False,
        False,
        True,
    ]
    assert (guess("held_out_rtd_auc"), guess("rtd_loss")) == ("A guess has 0.500.", "")


def test_what_copies_is_apart_and_what_adds_up_is_named() -> None:
    assert secondary(DEMO) == [
        ("positions that keep their word", "loss 0.810, accuracy 90.0%"),
        ("positions that show a random word", "loss 7.180, accuracy 3.0%"),
        ("all predicted positions, visible words included", "loss 2.800"),
        ("loss that is minimised, MLM + NSP", "3.100"),
    ]
    assert sum_of({"held_out_mlm_loss": 1, "held_out_mask_loss": 1, "loss": 1}) == "MLM"
    assert sum_of({"mlm_loss": 1, "sop_loss": 1, "nsp_loss_is_next": 1}) == "MLM + SOP"
    assert sum_of({"loss": 1}) == "total"
    assert [perplexity(x) for x in (None, 1.0, 6.0, 20.0, 1e9)] == ["", "2.7", "403", "4.9e+08", "5.2e+21"]


def test_the_majority_of_an_older_run_is_counted() -> None:
    counts = {"pair_labels": {"is_next": 424, "not_next": 576}}
    assert with_majority({}, counts) == {"held_out_nsp_majority": 0.576}
    assert with_majority({"held_out_nsp_majority": 0.6}, counts) == {"held_out_nsp_majority": 0.6}
    for odd in (None, 7, {}, {"pair_labels": {"is_next": "many"}}, {"pair_labels": 3}):
        assert with_majority({}, odd) == {}


def test_a_finding_reads_as_two_sentences() -> None:
    assert str(Finding(PLATEAU, "What.", "Remedy.")) == "What. Remedy."
