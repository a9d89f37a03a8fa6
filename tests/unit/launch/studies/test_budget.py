"""A study that compares at equal time gives each arm as many steps as fit into the time of the reference's."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from data_pipeline.errors import EXIT_STOPPED, UserError
from launch.studies import budget as module
from launch.studies.budget import EVERY, ROUNDS, budget_of, plan_lines, quiet_step, steps_by_arm, time_arms
from launch.studies.read import (
    STEP_TIMES,
    Place,
    Stopped,
    read_design,
    read_settings,
    read_step_times,
    run_of,
)
from pretrain.preflight.gpus import gpu_named
from pretrain.preflight.step_time import Cluster
from pretrain.run.metrics_log import JsonLines
from pretrain.studies.design import Changes, Design
from pretrain.studies.measured import Cell

TIMED = """title: T
question: Q?
recipe: demo
equal_time: true
settings: {train.steps: 900, run.ranks: 1}
arms: {a: {}, b: {settings: {encoder.layers: 3}}, c: {settings: {encoder.layers: 1}}, d: {model_of: b, segments: 1S}}
"""
MILLISECONDS = {1: 10.0, 2: 20.0, 3: 30.0}
"""A step, by layers."""


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The short runs that were made, in order. Of three rounds the second interval is disturbed in two."""
    done: list[str] = []

    def maskmill(arguments: Sequence[str], log: Path) -> tuple[int, str]:
        values = dict(word.split("=", 1) for word in arguments if "=" in word)
        folder = Path(values["run.dir"])
        folder.mkdir(parents=True)
        own = MILLISECONDS[int(values.get("encoder.layers", 2))]
        lines = JsonLines(folder)
        for interval in range(4):
            disturbed = interval == 2 and done.count(folder.name) != 1
            time = 500.0 if interval == 0 else own + 5 * interval + 40 * disturbed
            lines.log({"kind": "train", "step": (interval + 1) * EVERY, "step_ms": time})
        done.append(folder.name)
        assert values["run.stop_after"] == "200"
        return 0, ""

    monkeypatch.setattr(module, "maskmill", maskmill)
    return done


def study(folder: Path, text: str = TIMED, arms: tuple[str, ...] = (), *settings: str) -> Design:
    (folder / "own.yaml").write_text(text)
    changes = Changes(arms=arms, settings=read_settings(settings))
    return read_design(str(folder / "own.yaml"), changes)


def steps(design: Design, place: Place) -> list[int]:
    cells = [Cell(arm, 2) for arm in design.arms if not design.arms[arm].model_of]
    return [run_of(design, cell, place.folder, place.threads).config.train.steps for cell in cells]


def test_every_arm_has_the_time_of_the_reference(tmp_path: Path, trained: list[str]) -> None:
    design, place = study(tmp_path), Place(tmp_path / "out", None, None, 1)
    place.folder.mkdir()
    assert steps(design, place) == [900, 900, 900]
    said: list[str] = []
    time_arms(design, place, said.append)
    # 5, 10 and 15 ms are added in the intervals; on average 30 ms a step, 40 and 20
    assert steps(design, place) == [900, 675, 1350]
    assert trained == ["a-timed", "b-timed", "c-timed"] * ROUNDS
    assert not list((place.folder / "runs").iterdir())
    config = run_of(design, Cell("b", 1), place.folder, 1).config
    assert (config.train.eval_every, config.train.checkpoint_every) == (675 // 8, 675 // 4)
    assert steps_by_arm(design, place) == (
        "Steps at equal time: a 900; b 675 (1.33 times as long a step); c 1,350 (0.67 times as long a step)."
    )
    assert "3 arms, 3 short runs" in said[0]


def test_what_was_timed_is_not_timed_again(tmp_path: Path, trained: list[str]) -> None:
    place = Place(tmp_path / "out", None, None, 1)
    place.folder.mkdir()
    few = study(tmp_path, TIMED, ("a", "b"))
    time_arms(few, place, print)
    trained.clear()
    time_arms(few, place, print)
    assert trained == []
    time_arms(study(tmp_path), place, print)
    assert trained == ["a-timed", "c-timed"] * ROUNDS  # a new arm beside the reference
    trained.clear()
    wider = study(tmp_path, TIMED, (), "encoder.hidden=64")
    assert steps(wider, place) == [900, 900, 900], "other settings were not timed"
    time_arms(study(tmp_path), Place(place.folder, None, None, 4), print)
    assert trained == [], "threads are the machine's"
    assert len(read_step_times(place.folder)) == 2
    (place.folder / STEP_TIMES).write_text("{")
    assert read_step_times(place.folder) == {}


def test_equal_steps_need_no_times(tmp_path: Path, trained: list[str]) -> None:
    design = study(tmp_path, TIMED.replace("equal_time: true\n", ""))
    place = Place(tmp_path, None, None, 1)
    time_arms(design, place, print)
    assert (trained, steps_by_arm(design, place)) == ([], "")


def test_the_budget_is_the_time_of_the_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launch.studies.budget.peak_flops", lambda *_: 1e11)
    place = Place(tmp_path, None, None, 1)
    equal, other = (
        study(tmp_path, text, ("a", "b")) for text in (TIMED, TIMED.replace("equal_time: true\n", ""))
    )
    alone = study(tmp_path, TIMED, ("a",))
    seconds = [
        (budget := budget_of(one, place, {})).seconds * budget.at_once for one in (equal, alone, other)
    ]
    assert seconds[0] == pytest.approx(2 * seconds[1])
    assert seconds[2] > seconds[0]
    lines = plan_lines(equal, place, Cluster(1, 1, gpu_named("h100")), 0)
    assert "tokens each" in lines[0]
    assert lines[1].endswith(", as a")


def test_a_short_run_that_fails_or_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: list[str]
) -> None:
    design, place = study(tmp_path), Place(tmp_path / "out", None, None, 1)
    monkeypatch.setattr(module, "maskmill", lambda *_: (2, "maskmill: no room\n"))
    with pytest.raises(UserError, match=r"a-timed\.log.*a short run failed: no room"):
        time_arms(design, place, print)
    monkeypatch.setattr(module, "maskmill", lambda *_: (EXIT_STOPPED, ""))
    with pytest.raises(Stopped):
        time_arms(design, place, print)
    monkeypatch.setattr(module, "maskmill", lambda *_: (0, ""))
    with pytest.raises(UserError, match="too few steps to time: 900"):
        time_arms(design, place, print)
    assert not place.folder.exists()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("encoder.layers: 3", "train.steps: 3", r"arm b has its own train\.steps"),
        ("encoder.layers: 3", "train.minutes: 3", r"arm b has its own train\.minutes"),
        ("train.steps: 900, ", "", "has no steps"),
        ("arms:", "reference: d\narms:", "the reference trains nothing"),
        ("arms:", "tune: {encoder.hidden: [1, 2]}\narms:", r"encoder\.hidden is tuned"),
    ],
)
def test_what_decides_the_steps_otherwise_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        study(tmp_path, TIMED.replace(old, new))


def test_quiet_step_takes_the_shortest_round_of_each_interval() -> None:
    assert quiet_step([[5.0, 1.0], [1.0, 5.0], [9.0, 9.0]]) == 1.0
