"""day.py: each part's result is kept as it ends, in its time, beside those of earlier calls."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.gpu_day import day, results
from tests.gpu_day.parts import PARTS, Part
from tests.gpu_day.runs import Day, LeftOut

MACHINE = {"gpu": "G", "gpus": 1, "torch": "2", "deepspeed": "0.19", "python": "3.12", "date": "2026-01-01"}
LONGEST = 600.0
SEVERAL = 45
"""Minutes that the help and README.md name for a machine with several GPUs."""
Call = Callable[..., object]


def first(here: Day, figures: dict[str, Any]) -> None:
    """The first."""
    figures["found"] = 1


def overruns(here: Day, figures: dict[str, Any]) -> None:
    """One that takes too long."""
    figures["before"] = [*results.read(here.out)["parts"]]
    here.python("-c", "import time; time.sleep(100)")


def left_out(here: Day, figures: dict[str, Any]) -> None:
    """One that cannot be."""
    figures["before"] = [*results.read(here.out)["parts"]]
    raise LeftOut("needs two GPUs")


STUBS = {
    "tests": Part(first, 60.0, ("old",)),
    "twice": Part(overruns, 0.5),
    "lamb": Part(left_out, 60.0),
}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def call(out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Runs day.py with three parts of its own; returns what it exits with."""
    monkeypatch.setattr(day, "PARTS", dict(STUBS))
    monkeypatch.setattr(day, "machine", lambda here: dict(MACHINE))

    def run(*more: str) -> object:
        monkeypatch.setattr("sys.argv", ["day.py", str(out), f"--carried={tmp_path}", *more])
        with pytest.raises(SystemExit) as ended:
            day.main()
        return ended.value.code

    return run


def test_parts_end_in_their_time_and_are_kept_as_they_end(
    call: Call, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call() == 1
    parts = results.read(out)["parts"]
    assert {name: part["status"] for name, part in parts.items()} == {
        "tests": "done",
        "twice": "cut short",
        "lamb": "left out: needs two GPUs",
    }
    assert parts["twice"]["seconds"] < 10
    assert parts["twice"]["figures"]["before"] == ["tests"]
    assert parts["lamb"]["figures"]["before"] == ["tests", "twice"]
    *as_they_end, empty, one, two, three = capsys.readouterr().out.splitlines()
    assert (as_they_end, empty) == ([one, two, three], "")
    assert one.split() == ["tests", "0", "s", "done:", "found", "1"]
    assert "twice" in two
    assert "cut short" in two


def test_what_cannot_be_done_here_is_no_failure(call: Call) -> None:
    assert call("--parts", "tests", "lamb") == 0
    assert call("--parts", "tests", "twice") == 1


def test_a_later_call_adds_to_an_earlier_one(call: Call, out: Path) -> None:
    call("--parts", "tests")
    call("--parts", "lamb")
    assert [*results.read(out)["parts"]] == ["tests", "lamb"]
    assert call("--parts", "tests", "twice", "--minutes", "0") == 1
    statuses = {name: part["status"] for name, part in results.read(out)["parts"].items()}
    assert statuses == {"tests": "done", "lamb": "left out: needs two GPUs", "twice": "no time left"}, (
        "a part that there was no time for leaves what was found before"
    )


def test_results_of_another_machine_are_not_added_to(
    call: Call, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call("--parts", "tests")
    before = (out / "results.json").read_bytes()
    monkeypatch.setattr(day, "machine", lambda here: {**MACHINE, "torch": "3"})
    said = str(call("--parts", "lamb"))
    assert "results.json: of another machine" in said
    assert said.index("'torch': '2'") < said.index("'torch': '3'")
    assert (out / "results.json").read_bytes() == before


def test_what_a_part_leaves_is_removed_before_it_begins(call: Call, out: Path) -> None:
    for name in ("old/folder", "other"):
        (out / name).mkdir(parents=True)
    call("--parts", "tests")
    assert sorted(path.name for path in out.iterdir()) == ["other", "results.json"]


def test_every_file_of_a_part_is_removed_before_it_begins(tmp_path: Path) -> None:
    """Of a run in pieces all of them: a later one may have fewer."""
    for name in ("mini.tar.0", "mini.tar.1", "bench.json", "studies/a/runs/b", "studies/a/cells"):
        (tmp_path / name).mkdir(parents=True) if "/" in name else (tmp_path / name).touch()
    for part in PARTS.values():
        results.clear(tmp_path, part.leaves)
    assert [path.name for path in tmp_path.rglob("*")] == ["studies", "a", "cells"]


def test_wheels_are_installed_again_when_they_are_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = []

    def pip(command: list[str], check: bool) -> None:
        site = Path(command[command.index("--target") + 1])
        site.mkdir()
        installed.append([Path(each).name for each in command if each.endswith(".whl")])

    monkeypatch.setattr(subprocess, "run", pip)
    (tmp_path / "wheels").mkdir()
    for number, wheels in enumerate((["a-1.whl"], ["a-1.whl"], ["a-2.whl"])):
        for path in (tmp_path / "wheels").iterdir():
            path.unlink()
        for name in wheels:
            (tmp_path / "wheels" / name).touch()
        found = day.environment(tmp_path, tmp_path / "out")
        assert found["PYTHONPATH"].endswith(str(tmp_path / "out-site")), number
    assert installed == [["a-1.whl"], ["a-2.whl"]]
    (tmp_path / "out-site/wheels.txt").unlink()  # as pip leaves it where it did not end
    day.environment(tmp_path, tmp_path / "out")
    assert installed == [["a-1.whl"], ["a-2.whl"], ["a-2.whl"]]


def test_parts_fit_a_call_and_those_before_mini_a_day() -> None:
    assert max(part.seconds for part in PARTS.values()) < LONGEST
    names = [*PARTS]
    before = {name: PARTS[name].seconds for name in names[: names.index("mini")]}
    assert sum(before.values()) - before["ranks"] + day.LEAST <= 60 * day.MINUTES, "so that mini is begun"
    assert sum(before.values()) + day.LEAST <= 60 * SEVERAL
    readme = (day.ROOT / "tests/gpu_day/README.md").read_text("utf-8")
    for words in (str(day.__doc__), readme):
        assert f"--minutes {SEVERAL}" in words
    assert f"`--minutes` {day.MINUTES:g}" in readme
    assert {line.split("`")[1] for line in readme.splitlines() if line.startswith("| `")} == set(PARTS)


def test_results_are_whole_or_the_earlier_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results.write(tmp_path, {"machine": MACHINE, "parts": {}})

    def taken_away(path: Path, text: str, encoding: str) -> None:
        with path.open("w") as file:
            file.write(text[:5])
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", taken_away)
    with pytest.raises(KeyboardInterrupt):
        results.write(tmp_path, {"machine": MACHINE, "parts": {"tests": {}}})
    assert json.loads((tmp_path / "results.json").read_bytes()) == {"machine": MACHINE, "parts": {}}
