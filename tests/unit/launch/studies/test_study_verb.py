"""`maskmill study` prepares, runs a share or draws, as its options say."""

from pathlib import Path
from typing import Any

import pytest

from data_pipeline.stages.executors import ALL, Share
from launch.studies import run as carry_out
from tests.command_line import Maskmill

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
