"""A grid that is stopped goes on with the candidate that it was at, and ends as if nothing had stopped it."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from data_pipeline.stages.executors import Share
from pretrain.evaluate import evaluate as page
from pretrain.evaluate.evaluate import Evaluation, score_parts
from pretrain.evaluate.fine_tune import DivergedError, FineTuner, Trained
from pretrain.tasks.encoders import Encoder
from pretrain.tasks.settings import settings_for
from tests.factories.encoders import encoder_folder
from tests.factories.tasks import FILES, write

RTE = ("entailment", "not_entailment")
RATES = [1e-2, 1e-8, 1e-3]


class Killed(BaseException):
    """What ends a process, as far as the code that runs in it can tell."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    texts = zip(("A fox ran", "Dogs jumped over the quick one"), RTE, strict=True)
    rows = [f"{n}\t{text} {n}.\tIt slept.\t{label}" for text, label in texts for n in range(20)]
    rows = [row for pair in zip(rows[:20], rows[20:], strict=True) for row in pair]
    head = FILES["rte"]["train.tsv"][0]
    return write(tmp_path / "task", {"train.tsv": [head, *rows[:24]], "dev.tsv": [head, *rows[24:]]})


def grid(folder: Path, out: str, **changes: Any) -> Evaluation:
    wanted = {"max_length": 32, "threads": 1, "batch": 2, "epochs": 3.0, "tune_share": 0.25}
    settings = settings_for("rte", {**wanted, "grid": {"lr": RATES}, **changes})
    return Evaluation(
        "rte", Encoder(encoder_folder("bert")), folder, folder.parent / out, settings, [1], False, save=True
    )


def run(one: Evaluation) -> dict[str, Any]:
    return one.run(lambda name, total: nullcontext(lambda n: None))


def seed_of(one: Evaluation) -> dict[str, Any]:
    """What is kept of seed 1, but for the time that it took."""
    kept = json.loads((one.out / "rte/seed-1.json").read_text())
    del kept["result"]["seconds"]
    return kept


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The rates of the trainings as they begin; the process ends at a number that is put in beforehand, -1 say."""
    begun: list[float] = []
    train = FineTuner.train

    def spied(self: FineTuner, *arguments: Any) -> Trained:
        begun.append(self.settings.lr)
        if begun[0] < 0 and len(begun) - 2 == -begun[0]:
            raise Killed
        return train(self, *arguments)

    monkeypatch.setattr(FineTuner, "train", spied)
    return begun


@pytest.mark.parametrize("after", [1, 2])
def test_a_killed_grid_goes_on_with_the_candidate_that_it_was_at(
    after: int, folder: Path, trained: list[float]
) -> None:
    whole = grid(folder, "whole")
    run(whole)
    assert trained == RATES, "none is trained twice where nothing stops it"
    chosen = seed_of(whole)["result"]["details"]["chosen"]["lr"]
    assert chosen == RATES[0], "of the call that is killed"
    one = grid(folder, "killed")
    trained[:] = [-after]
    with pytest.raises(Killed):
        run(one)
    assert not list(one.out.rglob("seed-1.json"))
    trained.clear()
    run(one)
    assert trained == [*RATES[after:], chosen], "the best one again, for its weights"
    assert seed_of(one) == seed_of(whole)
    saved = [(each.out / "rte/seed-1/model.safetensors").read_bytes() for each in (one, whole)]
    assert saved[0] == saved[1]
    assert not list(one.out.rglob("*unfinished*"))


def test_a_best_one_of_the_second_call_is_not_trained_again(folder: Path, trained: list[float]) -> None:
    rates = [1e-8, 1e-7, 1e-2]
    whole, one = (grid(folder, out, grid={"lr": rates}) for out in ("whole", "killed"))
    run(whole)
    assert seed_of(whole)["result"]["details"]["chosen"]["lr"] == rates[-1]
    trained[:] = [-2]
    with pytest.raises(Killed):
        run(one)
    trained.clear()
    run(one)
    assert trained == rates[2:]
    assert seed_of(one) == seed_of(whole)


@pytest.mark.parametrize(("device", "again"), [("", [RATES[0]]), ("another", [*RATES])])
def test_only_the_best_one_is_trained_again_for_its_predictions(
    device: str, again: list[float], folder: Path, trained: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = grid(folder, "out")
    run(one)
    before = seed_of(one)
    trained.clear()
    if device:
        change(one, "conditions", monkeypatch)
    run(replace(one, predictions=True))
    assert trained == again
    assert (one.out / "rte/predictions/seed-1/dev/predictions.jsonl").is_file()
    assert seed_of(one)["result"]["details"] == before["result"]["details"]
    trained.clear()
    run(replace(one, predictions=True))
    assert not trained


@pytest.mark.parametrize(("after", "dev"), [(1, 16), (2, 16), (1, 64)])
def test_a_killed_grid_with_curves_ends_like_one_that_was_not(
    after: int, dev: int, folder: Path, trained: list[float]
) -> None:
    """Whether all have a curve, or the dev file is so large that the chosen one is trained again for its own."""
    head, *rows = (folder / "dev.tsv").read_text().splitlines()
    write(folder, {"dev.tsv": [head, *(rows * 4)[:dev]]})
    whole, one = (grid(folder, out, by_epoch=True) for out in ("whole", "killed"))
    run(whole)
    trained[:] = [-after]
    with pytest.raises(Killed):
        run(one)
    trained.clear()
    run(one)
    assert trained == [*RATES[after:], RATES[0]]
    assert len(seed_of(one)["result"]["details"]["by_epoch"]) == 3
    assert seed_of(one) == seed_of(whole)


def change(one: Evaluation, kind: str, monkeypatch: pytest.MonkeyPatch) -> Evaluation:
    """The same evaluation, in which something that its candidates are known by differs."""
    if kind == "settings":
        return replace(one, settings=replace(one.settings, weight_decay=0.02))
    if kind == "conditions":
        now = page.conditions_now
        monkeypatch.setattr(page, "conditions_now", lambda *given: {**now(*given), "device": "another"})
    if kind == "files":
        with (one.folder / "train.tsv").open("a") as file:
            file.write("99\tA.\tB.\tentailment\n")
    if kind == "damage":
        path = one.out / "rte/seed-1.unfinished.json"
        path.write_text(path.read_text().replace('"restart"', '"other"'))
    return one


@pytest.mark.parametrize("kind", ["settings", "conditions", "files", "damage"])
def test_what_other_candidates_came_to_does_not_count(
    kind: str, folder: Path, trained: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    trained[:] = [-2]
    with pytest.raises(Killed):
        run(grid(folder, "out"))
    trained.clear()
    other = change(grid(folder, "out"), kind, monkeypatch)
    run(other)
    assert trained == RATES
    assert not list(other.out.rglob("*unfinished*"))


def test_shares_keep_what_is_unfinished_apart(folder: Path, trained: list[float]) -> None:
    """An array's tasks each have their own parts: seeds, with the encoder's weights and without."""
    one = replace(grid(folder, "out"), seeds=[1, 2], has_floor=True, save=False)
    silent: Callable[..., Any] = lambda name, total: nullcontext(lambda n: None)  # noqa: E731
    for number in range(4):
        trained[:] = [-1]
        with pytest.raises(Killed):
            score_parts([one], silent, share=Share.parsed(f"{number}/4"))
    kept = sorted(path.name for path in one.out.rglob("*.json"))
    parts = ["floor-seed-1", "floor-seed-2", "seed-1", "seed-2"]
    assert kept == [f"{part}.unfinished.json" for part in parts]
    whole = replace(one, out=folder.parent / "whole")
    scores = [run(each)["scores"] for each in (one, whole)]
    assert scores[0] == scores[1]
    assert sorted(path.stem for path in one.out.rglob("*.json")) == [*parts[:2], "result", *parts[2:]]


def test_one_that_diverged_is_not_tried_again(
    folder: Path, trained: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    spied = FineTuner.train

    def train(self: FineTuner, *arguments: Any) -> Trained:
        if self.settings.lr == RATES[0]:
            trained.append(self.settings.lr)
            raise DivergedError("the loss is nan at update 1", where="rte")
        return spied(self, *arguments)

    monkeypatch.setattr(FineTuner, "train", train)
    trained[:] = [-2]
    with pytest.raises(Killed):
        run(grid(folder, "out"))
    trained.clear()
    run(grid(folder, "out"))
    assert trained[0] == RATES[2]
    outcomes = seed_of(grid(folder, "out"))["result"]["details"]["candidates"]
    assert [one["tuned"] is None for one in outcomes] == [True, False, False]


@pytest.mark.parametrize(("dev", "again"), [(16, False), (64, True)])
def test_the_curve_of_the_chosen_one_is_had_by_the_fewer_passes(
    dev: int, again: bool, folder: Path, trained: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """18 examples are trained on and 6 choose: scoring two more candidates is less than a training up to 30."""
    head, *rows = (folder / "dev.tsv").read_text().splitlines()
    write(folder, {"dev.tsv": [head, *(rows * 4)[:dev]]})
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
    assert trained == ([*RATES, RATES[0]] if again else RATES)
    assert passes.count(dev) == 1 + 3 * (1 if again else 3)
    assert len(note["details"]["by_epoch"]["dev"]["accuracy"]) == 3
    one, other = (seed_of(each)["result"] for each in (plain, watched))
    assert (one["splits"], one["details"]["candidates"]) == (other["splits"], other["details"]["candidates"])
    saved = [(each.out / "rte/seed-1/model.safetensors").read_bytes() for each in (plain, watched)]
    assert saved[0] == saved[1]
    assert torch.get_num_threads() == 1
