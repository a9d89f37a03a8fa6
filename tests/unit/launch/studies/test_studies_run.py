"""A study's runs are shared out alike whatever is done already, and a run that fails keeps no other from it."""

import json
import math
import os
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data_pipeline.errors import UserError
from data_pipeline.stages.executors import ALL, LocalProcesses, Share
from launch.studies import run
from launch.studies import run as carry_out
from launch.studies import run as cells
from launch.studies import run as score
from launch.studies.read import Place, Stopped, check_model, maskmill, read_design, read_settings
from launch.studies.run import DIVERGED, Study, identity_of, measure
from pretrain.config.settings import RunConfig
from pretrain.distributed.launch_env import SUPERVISOR
from pretrain.distributed.world import World
from pretrain.studies.design import Changes, Design
from pretrain.studies.measured import Cell, Measured, read_measured, write_measured
from pretrain.studies.page import read_facts, write_study
from pretrain.training.guard import MOST_IN_A_ROW, Guard
from pretrain.training.progress import Position
from tests.command_line import Maskmill
from tests.factories.studies import FACTS

EQUAL = """title: T
question: Q?
recipe: demo
equal: {examples: [a, b], masks: [a, b], weights: [a, b, c]}
arms: {a: {}, b: {}, c: {}, d: {}, e: {model_of: a, segments: 1S}}
"""
TUNED = """title: T
question: Q?
recipe: demo
arms: {a: {}, b: {settings: {encoder.layers: 1}}}
tune: {optim.lr: [0.1, 0.2]}
"""
TAKEN = """title: T
question: Q?
recipe: demo
figures: [held_out_mask_loss]
arms: {a: {}, b: {model_of: a, segments: 1S}}
"""
Measure = Callable[[Design, Cell, Place], Measured]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Cell]:
    """The runs that were measured, in order; those of rate 0.2 are better for b."""
    done: list[Cell] = []

    def measure(design: Design, cell: Cell, place: Place) -> Measured:
        if known := read_measured(place.cells, cell):
            return known
        done.append(cell)
        rate = dict(cell.tuned).get("optim.lr", 0.0)
        loss = 5.0 + (rate if cell.arm == "a" else -rate)
        figures = {"held_out_mask_loss": loss, "held_out_mask_unigram_loss": 6.0}
        found = Measured(cell.arm, cell.seed, [list(pair) for pair in cell.tuned], figures)
        write_measured(place.cells, found)
        return found

    monkeypatch.setattr(run, "measure", measure)
    return done


def study(folder: Path, text: str = TUNED, seeds: int = 3, said: list[str] | None = None) -> Study:
    (folder / "own.yaml").write_text(text)
    design = read_design(
        str(folder / "own.yaml"), Changes(seeds=seeds, settings=read_settings(["run.ranks=1"]))
    )
    said = [] if said is None else said
    place = Place(folder / "out", None, None, 1)
    return Study(design, place, "maskmill study own.yaml", said.append)


def names(cells: list[Cell]) -> list[str]:
    return [cell.name for cell in cells]


def test_further_seeds_are_run_at_the_best_of_the_grid(tmp_path: Path, measured: list[Cell]) -> None:
    study(tmp_path).run(1)
    grid = ["a-lr0.1-1", "a-lr0.2-1", "b-lr0.1-1", "b-lr0.2-1"]
    assert names(measured) == [*grid, "a-lr0.1-2", "a-lr0.1-3", "b-lr0.2-2", "b-lr0.2-3"]
    measured.clear()
    study(tmp_path, seeds=4).run(1)  # what is measured is not measured again
    assert names(measured) == ["a-lr0.1-4", "b-lr0.2-4"]
    assert (tmp_path / "out/README.md").is_file()


def test_shares_do_all_of_it_and_nothing_twice(tmp_path: Path, measured: list[Cell]) -> None:
    for _ in range(2):  # the second array does what needs the whole grid
        for number in range(3):
            study(tmp_path).run(1, Share(number, 3))
    assert not (tmp_path / "out/README.md").exists()
    assert len(names(measured)) == len(set(measured)) == 8
    measured.clear()
    study(tmp_path).run(1, ALL)
    assert measured == []
    assert "What is missing" not in (tmp_path / "out/README.md").read_text()


def test_arms_that_take_a_model_come_behind_it(tmp_path: Path, measured: list[Cell]) -> None:
    study(tmp_path, TAKEN, seeds=2).run(1)
    assert names(measured) == ["a-1", "a-2", "b-1", "b-2"]


@pytest.mark.parametrize("error", [UserError("no room", where="here"), ZeroDivisionError("no room")])
def test_a_failed_run_keeps_no_other_from_it(
    tmp_path: Path, measured: list[Cell], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    whole: Measure = run.measure

    def failing(design: Design, cell: Cell, place: Place) -> Measured:
        if cell.name == "a-1":
            raise error
        return whole(design, cell, place)

    monkeypatch.setattr(run, "measure", failing)
    said: list[str] = []
    with pytest.raises(UserError, match=r"1 runs failed, first a-1: .*no room"):
        study(tmp_path, TAKEN, seeds=2, said=said).run(1)
    if not isinstance(error, UserError):
        log = tmp_path / "out/logs/a-1.log"
        assert "in failing" in log.read_text(), "where it was raised"
        assert any(f"{log}: ZeroDivisionError: no room" in line for line in said)
    assert names(measured) == ["a-2", "b-2"]
    page = (tmp_path / "out/README.md").read_text()
    assert "- not measured: a-1 (" in page
    assert "- not measured: b-1" in page


def test_runs_side_by_side_do_all_of_it(
    tmp_path: Path, measured: list[Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    pools: list[int] = []

    def start(self: LocalProcesses) -> ThreadPoolExecutor:
        pools.append(self.count)
        self._executor = ThreadPoolExecutor(self.count)
        return self._executor

    monkeypatch.setattr(LocalProcesses, "start", start)
    said: list[str] = []
    study(tmp_path, TAKEN, seeds=2, said=said).run(2)
    assert pools == [2, 2], "all that train, and then the arms that take a model"
    assert sorted(names(measured)) == ["a-1", "a-2", "b-1", "b-2"]
    assert sorted(line.partition(":")[0] for line in said) == ["a-1", "a-2", "b-1", "b-2"]
    assert "What is missing" not in (tmp_path / "out/README.md").read_text()


def test_what_it_takes_is_said_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def maskmill(arguments: Sequence[str], log: Path) -> tuple[int, str]:
        done.append(arguments[0])
        return 0, ""

    monkeypatch.setattr(run, "maskmill", maskmill)
    monkeypatch.setattr("launch.studies.budget.peak_flops", lambda *_: 1e11)
    study(tmp_path, TAKEN, seeds=2, said=done).prepare()
    assert done[0].startswith("2 runs to train, ")
    assert done[2:] == ["vocab", "prepare"]


def test_a_killed_process_is_no_fault_of_the_runs(
    tmp_path: Path, measured: list[Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(design: Design, cell: Cell, place: Place) -> Measured:
        raise BrokenProcessPool

    monkeypatch.setattr(run, "measure", killed)
    monkeypatch.setattr(run.LocalProcesses, "start", lambda self: ThreadPoolExecutor(2))
    with pytest.raises(UserError, match=r"a process was killed, perhaps for memory.*fewer jobs"):
        study(tmp_path, TAKEN, seeds=2).run(2)


def test_a_signal_ends_a_study_and_leaves_what_there_is(
    tmp_path: Path, measured: list[Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole: Measure = run.measure

    def stopping(design: Design, cell: Cell, place: Place) -> Measured:
        if cell.seed == 2:
            raise Stopped(cell.name)
        return whole(design, cell, place)

    monkeypatch.setattr(run, "measure", stopping)
    with pytest.raises(Stopped):
        study(tmp_path, TAKEN, seeds=3).run(1)
    assert names(measured) == ["a-1"]
    assert "- not measured: a-2" in (tmp_path / "out/README.md").read_text()


def test_a_page_that_is_drawn_again_says_what_it_said(tmp_path: Path, measured: list[Cell]) -> None:
    """What the command that measured knew, and one that only draws does not."""
    again = study(tmp_path, TAKEN, seeds=2)
    (tmp_path / "out").mkdir()
    write_study(tmp_path / "out", again.design, [], {}, FACTS)
    write_measured(tmp_path / "out/cells", Measured("a", 1, [], {"held_out_mask_loss": 4.5}))
    again.redraw()
    page = (tmp_path / "out/README.md").read_text()
    for said in ("`maskmill study x`", "4 runs.", "seed 1: masks abc", "- not measured: b-2 (no room)"):
        assert said in page
    assert "| a | 1 of 2 | 4.500 |" in page, "what was measured since"
    assert read_facts(tmp_path / "out", "hour") == FACTS
    assert read_facts(tmp_path / "out", "long") is None, "of other runs"
    (tmp_path / "out/result.json").write_text("{")
    again.redraw()
    assert "`maskmill study own.yaml`" in (tmp_path / "out/README.md").read_text()


def test_what_must_be_equal_is_checked_in_the_arms_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, set[tuple[str, ...]]] = {}

    def hashes_of(config: RunConfig, wanted: tuple[str, ...]) -> dict[str, Any]:
        asked.setdefault(Path(config.run.dir).name.partition("-")[0], set()).add(wanted)
        return {kind: {"x": "1"} if kind == "weights" else f"{config.run.seed}" for kind in wanted}

    monkeypatch.setattr(run, "hashes_of", hashes_of)
    monkeypatch.setattr(run, "maskmill", lambda *_: (0, ""))
    monkeypatch.setattr("launch.studies.budget.peak_flops", lambda *_: 1e11)
    said: list[str] = []
    study(tmp_path, EQUAL, seeds=2, said=said).prepare()
    every = ("examples", "masks", "weights")
    assert asked == {"a": {every}, "b": {every}, "c": {("weights",)}}
    assert said[-2:] == ["seed 2: examples, masks equal in a, b", "seed 2: weights equal in a, b, c"]


# One run of a study: which seeds fine-tune it, what is kept of its scores, and what became of its training.


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


# `maskmill study` prepares, runs a share or draws, as its options say.


OWN = "title: T\nquestion: Q?\nrecipe: demo\narms: {a: {}, b: {settings: {encoder.layers: 1}}}\n"


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was done with the study, in order."""
    done: list[Any] = []

    def write(self: carry_out.Study) -> None:
        self.place.folder.mkdir(exist_ok=True)
        (self.place.folder / "table.md").write_text("the table")

    def run(self: carry_out.Study, jobs: int, share: Share) -> None:
        done.append((jobs, share))
        write(self)

    def redraw(self: carry_out.Study) -> None:
        done.append("draw")
        write(self)

    monkeypatch.setattr(carry_out.Study, "prepare", lambda self: done.append("prepare"))
    monkeypatch.setattr(carry_out.Study, "run", run)
    monkeypatch.setattr(carry_out.Study, "redraw", redraw)
    return done


@pytest.mark.parametrize(
    ("options", "expected", "shows"),
    [
        ([], ["prepare", (1, ALL)], True),
        (["--jobs=2"], ["prepare", (2, ALL)], True),
        (["--prepare"], ["prepare"], False),
        (["--share=1/3"], [(1, Share(1, 3))], False),  # what --prepare has prepared
        (["--draw"], ["draw"], True),
        (["--plan"], [], False),
    ],
)
def test_what_the_options_ask_for(
    options: list[str],
    expected: list[Any],
    shows: bool,
    tmp_path: Path,
    maskmill: Maskmill,
    called: list[Any],
) -> None:
    (tmp_path / "own.yaml").write_text(OWN)
    said = maskmill("study", "own.yaml", "--out=out", *options, cwd=tmp_path).stdout
    assert called == expected
    assert ("the table" in said) == shows


def test_one_model_for_arms_that_train_differently_is_refused(
    tmp_path: Path, maskmill: Maskmill, called: list[Any]
) -> None:
    (tmp_path / "own.yaml").write_text(OWN)
    said = maskmill("study", "own.yaml", f"--model={tmp_path}", cwd=tmp_path, code=2)
    assert "arms a and b differ in how they are trained" in said.stderr
    assert called == []
