"""Of a grid and its restarts the candidate that is best on the tuning examples is scored, as if it had been alone."""

import itertools
import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.errors import UserError
from launch.recipe import read_changes
from pretrain.evaluate.evaluate import Evaluation
from pretrain.evaluate.fine_tune import DivergedError, FineTuner, Trained
from pretrain.evaluate.seed_run import candidates
from pretrain.tasks.encoders import Encoder
from pretrain.tasks.settings import RECIPES, settings_for
from tests.factories.encoders import encoder_folder
from tests.factories.tasks import FILES, check_facts, write

RTE = ("entailment", "not_entailment")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [f"{n}\tA fox {n} ran.\tIt slept.\t{label}" for n in range(15) for label in RTE]
    head = FILES["rte"]["train.tsv"][0]
    return write(tmp_path / "task", {"train.tsv": [head, *rows[:24]], "dev.tsv": [head, *rows[24:]]})


def scored(folder: Path, out: str, floor: bool = False, seeds: int = 1, **changes: Any) -> dict[str, Any]:
    """What result.json says of RTE."""
    settings = settings_for(
        "rte", {"max_length": 32, "threads": 1, "batch": 8, "tune_share": 0.25, **changes}
    )
    where = folder.parent / out
    encoder = Encoder(encoder_folder("bert"))
    Evaluation("rte", encoder, folder, where, settings, range(1, seeds + 1), floor).run(
        lambda name, total: nullcontext(lambda n: None)
    )
    return json.loads((where / "rte/result.json").read_text())


def details(folder: Path, out: str, seed: int = 1) -> dict[str, Any]:
    return json.loads((folder.parent / out / f"rte/seed-{seed}.json").read_text())["result"]["details"]


def test_the_chosen_one_is_scored_as_if_it_alone_had_been_trained(folder: Path) -> None:
    """Each candidate starts anew: none has another one's weights, order or dropout."""
    note = scored(folder, "grid", floor=True, epochs=2.0, grid={"lr": [1e-8, 3e-3, 1e-3]})
    check_facts(note, "rte")
    selection = note["details"]["selection"]
    assert (selection["set"], selection["examples"]) == ("tune", 6)
    assert selection["chooses"] == ["epoch", "lr", "restart"]
    (table,), (chosen,) = selection["candidates"], selection["chosen"]
    assert [one["lr"] for one in table] == [1e-8, 3e-3, 1e-3]
    best = max(table, key=lambda one: one["tuned"])
    assert chosen == {"lr": best["lr"], "restart": 0}
    assert (
        f"chosen of 3 by 6 examples kept from training: lr={best['lr']:g} restart=0 with seed 1"
        in note["notes"]
    )
    alone = scored(folder, "alone", epochs=2.0, lr=best["lr"])
    assert alone["scores"] == note["scores"]
    for what in ("last_losses", "tuned"):
        assert details(folder, "alone")[what] == details(folder, "grid")[what]
    assert details(folder, "alone")["candidates"] == []


def tuned_by(monkeypatch: pytest.MonkeyPatch, tuned: Callable[[FineTuner], float]) -> list[tuple[int, float]]:
    """Trainings that do nothing and have this metric; returns seed and rate of each."""
    trained: list[tuple[int, float]] = []

    def train(self: FineTuner, features: Any, advance: Any, tune: Any, after_epoch: Any) -> Trained:
        trained.append((self.seed, self.settings.lr))
        return Trained(updates=1, epochs=1, losses=[0.0], tuned=[tuned(self)])

    monkeypatch.setattr(FineTuner, "train", train)
    return trained


def test_a_restart_has_another_head_and_another_order(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heads: list[float] = []

    def tuned(tuner: FineTuner) -> float:
        heads.append(float(tuner.model.classifier.weight.detach().sum()))  # type: ignore[union-attr,operator]
        return 50.0 + (len(heads) == 2)

    trained = tuned_by(monkeypatch, tuned)
    note = scored(folder, "out", seeds=2, restarts=3)
    assert len({seed for seed, _ in trained}) == len(set(heads)) == 6
    assert {1, 2} < {seed for seed, _ in trained}, "the first one begins as without restarts"
    assert note["details"]["selection"]["chosen"] == [{"restart": 1}, {"restart": 0}]
    assert scored(folder, "one", restarts=1)["details"]["selection"]["chooses"] == ["epoch"]


def test_of_equal_ones_the_first_and_never_one_that_diverged(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tuned(tuner: FineTuner) -> float:
        if tuner.settings.lr == 0.3:
            raise DivergedError("the loss is nan at update 1", where="rte")
        return 60.0

    tuned_by(monkeypatch, tuned)
    selection = scored(folder, "out", grid={"lr": [0.3, 0.2, 0.1]})["details"]["selection"]
    assert selection["chosen"] == [{"lr": 0.2, "restart": 0}]
    assert [one["tuned"] for one in selection["candidates"][0]] == [None, 60.0, 60.0]
    with pytest.raises(UserError, match="the loss is nan at update 1"):
        scored(folder, "none", grid={"lr": [0.3]})


def test_the_grids_of_the_papers() -> None:
    found = candidates(settings_for("mrpc", {"recipe": "bert-grid"}))
    assert [one.values for one in found] == [{"lr": lr} for lr in (5e-5, 4e-5, 3e-5, 2e-5)]
    assert len(candidates(settings_for("mrpc", {"recipe": "small-grid"}))) == 20
    narrowed = settings_for("mrpc", {"recipe": "small-grid", "lr": 1e-4})
    assert (narrowed.lr, list(narrowed.grid)) == (1e-4, ["batch"])
    assert all(isinstance(one.of(narrowed).batch, int) for one in candidates(narrowed))
    changes = read_changes(["recipe=bert-grid", "grid.batch=[16,32]", "grid.epochs=[2,3,4]"])
    assert len(candidates(settings_for("mrpc", changes))) == 4 * 2 * 3


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        (["grid.lr=[1e-4]"], "grid: needs tune_share (a share of the training examples, as tune_share=0.1)"),
        (["restarts=2"], "restarts: needs tune_share"),
        (["restarts=0"], "restarts: must be at least 1, got 0"),
        (
            ["tune_share=0.1", "grid.max_length=[64]"],
            "grid.max_length: is nothing to choose among (expected one of lr",
        ),
        (["tune_share=0.1", "grid.batch=[8,0]"], "grid.batch: each value must be at least 1, got 0"),
        (["tune_share=0.1", "grid.batch=[8.5]"], "grid.batch: each value must be at least 1, got 8.5"),
        (["tune_share=0.1", "grid.epochs=[0,2]"], "grid.epochs: each value must be above 0, got 0"),
        (
            ["tune_share=0.1", "grid.epochs=[1,2]", "head_epochs=1"],
            "head_epochs: must be below epochs=1, got 1",
        ),
        (["tune_share=0.1", "grid.lr=[]"], "grid.lr: each value must be in (0, 1), has none"),
        (["tune_share=0.1", "grid.lr=[1e-4]", "lr=1e-4"], "lr: has a value and a grid: 0.0001, [0.0001]"),
        (["grid=3"], "grid: "),
    ],
)
def test_a_grid_that_cannot_be_is_refused(pairs: list[str], said: str) -> None:
    with pytest.raises(UserError) as refused:
        settings_for("mrpc", read_changes(pairs))
    assert said in str(refused.value)


# Of an evaluation that was stopped, finished seeds stay, and a seed that was not begins anew.


RATES = [1e-2, 1e-8, 1e-3]


class Killed(BaseException):
    """What ends a process, as far as the code that runs in it can tell."""


def grid(folder: Path, out: str, seeds: tuple[int, ...] = (1,), **changes: Any) -> Evaluation:
    wanted = {"max_length": 32, "threads": 1, "batch": 2, "epochs": 3.0, "tune_share": 0.25}
    settings = settings_for("rte", {**wanted, "grid": {"lr": RATES}, **changes})
    encoder = Encoder(encoder_folder("bert"))
    return Evaluation("rte", encoder, folder, folder.parent / out, settings, seeds, False, save=True)


def run(one: Evaluation) -> dict[str, Any]:
    return one.run(lambda name, total: nullcontext(lambda n: None))


def seed_of(one: Evaluation, seed: int = 1) -> dict[str, Any]:
    """What is kept of a seed, but for the time that it took."""
    kept = json.loads((one.out / f"rte/seed-{seed}.json").read_text())
    del kept["result"]["seconds"]
    return kept


def weights(one: Evaluation, seed: int = 1) -> bytes:
    return (one.out / f"rte/seed-{seed}/model.safetensors").read_bytes()


@pytest.fixture
def killed_at() -> list[tuple[int, float]]:
    """Seeds and rates of the trainings at which the process ends."""
    return []


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch, killed_at: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Seed and rate of each training as it begins."""
    begun: list[tuple[int, float]] = []
    train = FineTuner.train

    def spied(self: FineTuner, *arguments: Any) -> Trained:
        begun.append((self.seed, self.settings.lr))
        if begun[-1] in killed_at:
            raise Killed
        return train(self, *arguments)

    monkeypatch.setattr(FineTuner, "train", spied)
    return begun


def test_a_killed_evaluation_goes_on_with_the_seed_that_it_was_at(
    folder: Path, trained: list[tuple[int, float]], killed_at: list[tuple[int, float]]
) -> None:
    whole, one = grid(folder, "whole", (1, 2)), grid(folder, "killed", (1, 2))
    run(whole)
    assert trained == [(seed, lr) for seed in (1, 2) for lr in RATES]
    killed_at.append((2, RATES[1]))
    with pytest.raises(Killed):
        run(one)
    assert [path.name for path in (one.out / "rte").glob("*.json")] == ["seed-1.json"]
    killed_at.clear()
    trained.clear()
    run(one)
    assert trained == [(2, lr) for lr in RATES], "from its first candidate on"
    for seed in (1, 2):
        assert seed_of(one, seed) == seed_of(whole, seed)
        assert weights(one, seed) == weights(whole, seed)


def test_predictions_that_were_not_kept_are_made_by_training_again(
    folder: Path, trained: list[tuple[int, float]]
) -> None:
    one = grid(folder, "out")
    run(one)
    before = seed_of(one)
    trained.clear()
    run(replace(one, predictions=True))
    assert trained == [(1, lr) for lr in RATES]
    assert (one.out / "rte/predictions/seed-1/dev/predictions.jsonl").is_file()
    assert seed_of(one) == before
    trained.clear()
    run(replace(one, predictions=True))
    assert not trained


@pytest.mark.parametrize(("dev", "again"), [(16, False), (64, True)])
def test_the_curve_of_the_chosen_one_is_had_by_the_fewer_passes(
    dev: int, again: bool, folder: Path, trained: list[tuple[int, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """18 examples are trained on and 6 choose: scoring two more candidates is less than a training up to 30."""
    head, *rows = (folder / "dev.tsv").read_text().splitlines()
    write(folder, {"dev.tsv": [head, *(rows * 11)[:dev]]})
    plain = grid(folder, "plain")
    run(plain)
    trained.clear()
    passes: list[int] = []
    answers = FineTuner.answers

    def spied(self: FineTuner, features: Any, advance: Any) -> Any:
        passes.append(len(features))
        return answers(self, features, advance)

    monkeypatch.setattr(FineTuner, "answers", spied)
    watched = grid(folder, "watched", by_epoch=True)
    note = run(watched)
    chosen = seed_of(watched)["result"]["details"]["chosen"]["lr"]
    assert [lr for _, lr in trained] == [*RATES, *([chosen] if again else [])]
    assert passes.count(dev) == 1 + 3 * (1 if again else 3)
    assert len(note["details"]["by_epoch"]["dev"]["accuracy"]) == 3
    one, other = (seed_of(each)["result"] for each in (plain, watched))
    assert (one["splits"], one["details"]["candidates"]) == (other["splits"], other["details"]["candidates"])
    assert weights(plain) == weights(watched)


# What every recipe has in common: of tasks that need it, and of features of a frozen encoder.


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
