"""One run of a study: which seeds fine-tune it, what is kept of its scores, and what became of its training."""

import json
import math
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data_pipeline.errors import UserError
from launch.studies import run as cells
from launch.studies import run as score
from launch.studies.read import Place, check_model, maskmill, read_design, read_settings
from launch.studies.run import DIVERGED, identity_of, measure
from pretrain.config.settings import RunConfig
from pretrain.distributed.launch_env import SUPERVISOR
from pretrain.distributed.world import World
from pretrain.studies.design import Changes, Design
from pretrain.studies.measured import Cell, read_measured
from pretrain.training.guard import MOST_IN_A_ROW, Guard
from pretrain.training.progress import Position

SCORED = """title: T
question: Q?
recipe: demo
settings: {run.ranks: 1}
evaluate:
  - {task: ud, seeds: 2, data: DATA, metrics: [LAS, UPOS], settings: {by_epoch: true}}
arms: {a: {}, b: {model_of: a, segments: 1S}, c: {settings: {encoder.layers: 1}}}
"""
NOTE = {
    "task": "ud-English-EWT",
    "headline": "LAS",
    "scores": {"dev": {"LAS": {"mean": 30.0}, "UPOS": {"mean": 40.0}, "UAS": {"mean": 35.0}}},
    "details": {"by_epoch": {"dev": {"LAS": [20.0, 30.0], "UPOS": [39.0, 40.0]}}},
    "trivial": {"dev": {"LAS": 10.0}},
}


def design_of(folder: Path, *settings: str, arms: tuple[str, ...] = ("b",)) -> Design:
    (folder / "treebank").mkdir(exist_ok=True)
    (folder / "own.yaml").write_text(SCORED.replace("DATA", str(folder / "treebank")))
    return read_design(str(folder / "own.yaml"), Changes(arms=arms, settings=read_settings(settings)))


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was evaluated: the arguments, and the seeds last."""
    done: list[Any] = []

    class Evaluation:
        def __init__(self, *arguments: Any, has_floor: bool) -> None:
            done.append(arguments)

        def run(self, progress: object) -> dict[str, Any]:
            return NOTE

    monkeypatch.setattr(score, "Evaluation", Evaluation)
    for module in (score, cells):
        monkeypatch.setattr(module, "find_encoders", lambda folder: [folder])
    monkeypatch.setattr(score, "pick_encoder", lambda task, found: found[0])
    monkeypatch.setattr(score, "edited_folder", lambda source, kind, out: source)
    monkeypatch.setattr(
        cells, "Encoder", lambda folder: SimpleNamespace(identity=f"weights of {folder.name}")
    )
    return done


def test_scores_are_kept_with_their_curves(tmp_path: Path, evaluated: list[Any]) -> None:
    design, place = design_of(tmp_path), Place(tmp_path / "out", None, tmp_path / "model", 1)
    figures = {"ud-English-EWT.LAS": 30.0, "ud-English-EWT.UPOS": 40.0}
    curves = {"ud-English-EWT.LAS": [20.0, 30.0], "ud-English-EWT.UPOS": [39.0, 40.0]}
    found = measure(design, Cell("b", 1), place)
    assert (found.figures, found.by_epoch, found.trivial) == (figures, curves, {"ud-English-EWT.LAS": 10.0})
    assert read_measured(place.cells, Cell("b", 1)) == found
    assert evaluated[0][4].by_epoch


def test_a_given_model_is_fine_tuned_with_other_seeds_in_each_cell(
    tmp_path: Path, evaluated: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cells differ in nothing else. A study's own models differ by their pretraining, and share those seeds."""
    design = design_of(tmp_path)
    monkeypatch.setattr(score, "_exported", lambda cell, place: Path("export"))
    seeds: dict[bool, list[list[int]]] = {}
    for model in (tmp_path / "model", None):
        evaluated.clear()
        place = Place(tmp_path, None, model, 1)
        for seed in (1, 2, 3):
            score.scores(design, Cell("b", seed), place, Path("m"), design.evaluate[0], 0, tmp_path, [])
        seeds[model is not None] = [list(arguments[-1]) for arguments in evaluated]
    assert seeds == {True: [[1, 2], [3, 4], [5, 6]], False: [[1, 2]] * 3}


def test_a_given_model_is_what_its_cells_are_known_by(tmp_path: Path, evaluated: list[Any]) -> None:
    """Not the settings of a training that does not take place."""

    def identity(model: str, *settings: str, arm: str = "a") -> str:
        place = Place(tmp_path, None, tmp_path / model, 1)
        return identity_of(design_of(tmp_path, *settings), Cell(arm, 1), place)

    first = identity("model")
    assert identity("model", "train.steps=7") == first
    assert len({first, identity("other"), identity("model", arm="b")}) == 3
    assert identity("model", "evaluate.ud.epochs=1") != first


def test_arms_that_train_differently_do_not_score_one_model(tmp_path: Path) -> None:
    place = Place(tmp_path, None, tmp_path / "model", 1)
    with pytest.raises(UserError, match=r"arms a and c differ in how they are trained.*--arms"):
        check_model(design_of(tmp_path, arms=("a", "b", "c")), place)
    check_model(design_of(tmp_path, arms=("a", "b")), place)
    check_model(design_of(tmp_path, arms=("a", "b", "c")), Place(tmp_path, None, None, 1))


def told(config: RunConfig, **batch: bool) -> str:
    """What a run says that ended after too many batches that were not applied."""
    guard = Guard(config, Position(), World(), "fp32")
    config.train.on_nan = "skip"
    for _ in range(MOST_IN_A_ROW - 1):
        guard.refused(Position(batch=3), **batch)
    with pytest.raises(UserError) as ended:
        guard.refused(Position(batch=3), **batch)
    return f"maskmill: {ended.value}\n"


def test_a_run_that_diverged_is_known_by_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the words of training itself. One whose examples cannot be read has failed, and measures nothing."""
    config, said = RunConfig(), {}
    said["nan"] = told(config, empty=False)
    said["damage"] = told(config, empty=True)
    assert DIVERGED.search(
        "the loss of batch 3 is a spike: 9 is above 7, the 10th batch in a row that was skipped"
    )
    design, place = design_of(tmp_path), Place(tmp_path / "out", None, None, 1)
    evaluated: list[object] = []
    monkeypatch.setattr(cells, "identity_of", lambda *_: "same")
    monkeypatch.setattr(cells, "tokens_by_step", lambda phases: float)
    monkeypatch.setattr(cells, "model_of", lambda *_: evaluated.append(1))
    folder = tmp_path / "out/runs/a-1"
    folder.mkdir(parents=True)
    line = {"kind": "eval", "step": 1, "held_out_mask_loss": 5.0}
    (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")

    def outcome(word: str) -> Any:
        def maskmill(arguments: Sequence[str], log: Path) -> tuple[int, str]:
            return 2, said[word]

        monkeypatch.setattr(cells, "maskmill", maskmill)
        return measure(design, Cell("a", 1), place)

    with pytest.raises(UserError, match=r"training failed: .*no example of batch 2 can be read"):
        outcome("damage")
    found = outcome("nan")
    assert (found.finite, found.figures) == (False, {"held_out_mask_loss": math.inf})
    assert not evaluated, "nothing of it is scored"


def test_a_setting_that_is_younger_than_a_cell_changes_nothing_at_its_old_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells, "Index", SimpleNamespace(load=lambda folder: SimpleNamespace(identity="i")))
    place, cell = Place(tmp_path, None, None, 1), Cell("a", 1)
    now = identity_of(design_of(tmp_path), cell, place)
    other = identity_of(design_of(tmp_path, "schedule.name=wsd", "schedule.decay_to=0.5"), cell, place)
    monkeypatch.setattr(cells, "canonical_json", lambda parts: repr(parts).encode())
    assert other != now
    monkeypatch.setattr(cells, "sha256", lambda text: SimpleNamespace(hexdigest=text.decode))
    assert "decay_to" not in identity_of(design_of(tmp_path), cell, place)
    changed = design_of(tmp_path, "schedule.name=wsd", "schedule.decay_to=0.5")
    assert "decay_to" in identity_of(changed, cell, place)


def test_a_training_does_not_outlive_its_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel kills what names it in this variable (test_ranks.py), so that no orphan holds a run's folder."""
    given: dict[str, str] = {}

    def run(command: list[str], env: dict[str, str], **more: Any) -> Any:
        given.update(env)
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", run)
    assert maskmill(["train", "demo"], tmp_path / "log") == (0, "")
    assert given[SUPERVISOR] == str(os.getpid())
