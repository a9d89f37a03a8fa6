"""What every recipe has in common: of tasks that need it, and of features of a frozen encoder."""

import itertools
from dataclasses import replace

from pretrain.evaluate.seed_run import candidates
from pretrain.tasks.settings import RECIPES, settings_for


def test_every_recipe_scores_the_diagnostic_set_alone() -> None:
    for recipe in RECIPES:
        found = settings_for("ax", {"recipe": recipe})
        assert (found.epochs, found.tune_share, found.grid) == (0, 0, {})


def test_every_recipe_reads_questions_in_long_inputs() -> None:
    for recipe, task in itertools.product(RECIPES, ("squad1", "squad2", "questions")):
        assert settings_for(task, {"recipe": recipe}).max_length == (512 if recipe == "electra" else 384)


def test_features_are_read_with_the_same_settings_in_every_recipe() -> None:
    """What is published for an encoder that learns is not for a BiLSTM on a frozen one, unless it is asked for."""
    expected = settings_for("conll2003", {"features": "last"})
    assert (expected.lr, expected.head_lr, expected.layer_decay) == (1e-3, 0, 1)
    for recipe in RECIPES:
        found = settings_for("conll2003", {"recipe": recipe, "features": "last"})
        assert replace(found, recipe="bert") == expected
        assert candidates(found) == candidates(expected)
    asked = {
        "head_lr": 0.02,
        "head_epochs": 2.0,
        "betas": [0.8, 0.9],
        "layer_decay": 0.9,
        "grid": {"lr": [0.1]},
    }
    found = settings_for("conll2003", {"recipe": "machamp", "features": "last", **asked})
    assert {name: getattr(found, name) for name in asked} == asked
