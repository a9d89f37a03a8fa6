"""Metrics on fixed cases: those of the official scorers."""

import tomllib
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.errors import UserError
from pretrain.tasks import metrics
from pretrain.tasks.tagging import to_bio2
from tests.command_line import ROOT, Maskmill

GOLD = np.array([1] * 279 + [0] * 129)  # MRPC's dev labels: 68.4 % are 1


def test_always_the_commonest_label() -> None:
    ones = np.ones_like(GOLD)
    assert metrics.accuracy(GOLD, ones) == pytest.approx(68.4, abs=0.05)
    assert metrics.f1(GOLD, ones) == pytest.approx(81.2, abs=0.05)
    assert metrics.f1(GOLD, 1 - ones) == 0
    assert metrics.matthews(GOLD, ones) == 0


def test_all_right() -> None:
    numbers = np.linspace(0, 5, 50)
    for metric in (metrics.accuracy, metrics.f1, metrics.matthews):
        assert metric(GOLD, GOLD) == 100
    assert metrics.pearson(numbers, 2 * numbers + 1) == pytest.approx(100)
    assert metrics.spearman(numbers, numbers**3) == pytest.approx(100)


def test_matthews_of_several_classes_is_gorodkins() -> None:
    gold, predicted = np.array([0, 0, 1, 1, 2, 2, 2]), np.array([0, 1, 1, 1, 2, 0, 2])
    correct, total = 5, 7
    true, said = np.bincount(gold), np.bincount(predicted)
    expected = (correct * total - true @ said) / np.sqrt((total**2 - said @ said) * (total**2 - true @ true))
    assert metrics.matthews(gold, predicted) == pytest.approx(100 * expected)


def test_ties_have_their_average_rank() -> None:
    gold, predicted = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 1.0, 2.0, 2.0])
    ranks = np.array([1.5, 1.5, 3.5, 3.5])
    assert metrics.spearman(gold, predicted) == pytest.approx(100 * np.corrcoef(gold, ranks)[0, 1])


def test_a_constant_prediction_correlates_with_nothing() -> None:
    assert metrics.pearson(np.arange(5.0), np.ones(5)) == 0
    assert metrics.spearman(np.arange(5.0), np.ones(5)) == 0


def test_entities_count_as_in_conlleval() -> None:
    gold = [["B-PER", "I-PER", "O", "B-LOC"]]
    assert metrics.entity_f1(gold, gold)["f1"] == 100
    assert metrics.entity_f1(gold, [["B-PER", "O", "O", "B-LOC"]]) == {
        "f1": 50,
        "precision": 50,
        "recall": 50,
    }
    assert metrics.entity_f1(gold, [["I-PER", "I-PER", "O", "I-LOC"]])["f1"] == 100  # I after O begins one
    other = metrics.entity_f1([["B-PER", "B-LOC"]], [["B-PER", "I-LOC"]])
    assert other["f1"] == 100  # so does I after another type
    assert metrics.entity_f1(gold, [["O"] * 4])["f1"] == 0


def test_an_entity_ends_with_its_sentence() -> None:
    assert metrics.entity_f1([["B-PER"], ["I-PER"]], [["B-PER"], ["I-PER"]])["f1"] == 100
    assert metrics.entity_f1([["B-PER"], ["I-PER"]], [["B-PER"], ["O"]])["recall"] == 50


def test_iob1_becomes_bio2() -> None:
    iob1 = ["I-PER", "I-PER", "B-PER", "O", "I-LOC", "I-ORG", "I-ORG"]
    bio2 = ["B-PER", "I-PER", "B-PER", "O", "B-LOC", "B-ORG", "I-ORG"]
    assert list(to_bio2(iob1)) == bio2
    assert list(to_bio2(bio2)) == bio2


def test_all_of_the_extra_is_asked_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = project["optional-dependencies"]["evaluate"]
    assert [package.partition(">=")[0] for package in extra] == list(metrics.EXTRA)
    metrics.require("ud")


def test_trees_alone_need_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = metrics.is_installed
    monkeypatch.setattr(
        metrics, "is_installed", lambda name: name not in metrics.OF_TREES and installed(name)
    )
    metrics.require("blimp")
    with pytest.raises(UserError, match=r"not installed: udtools, ufal\.chu-liu-edmonds"):
        metrics.require("ud")


def test_a_study_without_what_scores_its_tasks_starts_nothing(
    maskmill: Maskmill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "EXTRA", (*metrics.EXTRA, "lost"))
    with pytest.raises(UserError, match="not installed: lost"):
        metrics.require("mrpc")
    refused = maskmill("study", "formats", f"--out={tmp_path}/out", code=2)
    assert "not installed: lost" in refused.stderr
    assert not (tmp_path / "out").exists()
