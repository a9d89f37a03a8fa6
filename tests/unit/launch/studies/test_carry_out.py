"""A study's runs are shared out alike whatever is done already, and a run that fails keeps no other from it."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.errors import UserError
from data_pipeline.stages.executors import ALL, LocalProcesses, Share
from launch.studies import run
from launch.studies.read import Place, Stopped, read_design, read_settings
from launch.studies.run import Study
from pretrain.config.settings import RunConfig
from pretrain.studies.design import Changes, Design
from pretrain.studies.measured import Cell, Measured, read_measured, write_measured
from pretrain.studies.page import read_facts, write_study
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
