"""`import maskmill`: text to a scored model by functions; nothing heavy is loaded before."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import maskmill
from tests.command_line import setting


def settings(words: list[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words)


def test_importing_it_loads_no_other_library() -> None:
    code = "import sys, maskmill; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "transformers", "omegaconf", "rich", "typer"} & set(done.stdout.split())


def test_all_that_it_promises_is_there() -> None:
    assert all(getattr(maskmill, name) for name in maskmill.__all__)


def test_what_the_command_line_says_of_the_text_is_said_here(
    tiny: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    maskmill.prepare("demo", settings(tiny))
    said = capsys.readouterr()
    assert "already prepared: " in said.err
    assert "tokens in" in said.err
    assert said.out == ""


def test_from_text_to_scores(tiny: list[str], tmp_path: Path) -> None:
    mine = settings(tiny) | {"run.dir": tmp_path / "run", "train.steps": 2, "train.eval_every": 1}
    (index,) = maskmill.prepare("demo", mine)
    assert index.identity == maskmill.read_index(setting(tiny, "data.out")).identity
    first = next(maskmill.read_shards(setting(tiny, "data.out")))
    assert first.tokens.dtype == np.uint16

    done = maskmill.train("demo", mine)
    assert (done.folder, done.finished, done.step) == (tmp_path / "run", True, 2)
    assert done.metrics["held_out_mask_loss"] > 0
    assert maskmill.train("demo", mine) == done  # nothing is left to do

    exported = maskmill.export(done.folder, tmp_path / "model")
    ((text, words),) = maskmill.fill(exported.model, ["the [MASK] sailed"], top=3)
    assert text == "the [MASK] sailed"
    assert len(words) == 3
    (score,) = maskmill.evaluate(
        exported.model, "held_out", setting(tiny, "data.out"), {"part": 0.5}, random_init=False
    )
    assert (score.task, score.metric) == ("held_out", "mask_loss")
    assert score.median == pytest.approx(done.metrics["held_out_mask_loss"], rel=0.2)


def test_a_stopped_run_is_not_finished(tiny: list[str], tmp_path: Path) -> None:
    mine = settings(tiny) | {"run.dir": tmp_path / "run", "train.steps": 3, "run.stop_after": 1}
    done = maskmill.train("demo", mine)
    assert (done.finished, done.step) == (False, 1)


def test_values_are_written_as_the_command_line_reads_them() -> None:
    given = {"data.sources": ["a b.txt", Path("c.txt")], "optim.betas": (0.9, 0.98), "run.live": False}
    config = maskmill.load_config("demo", given | {"vocabulary.lowercase": None, "optim.lr": 1e-3})
    assert config.data.sources == ["a b.txt", "c.txt"]
    assert config.optim.betas == [0.9, 0.98]
    assert (config.run.live, config.vocabulary.lowercase, config.optim.lr) == (False, None, 1e-3)


def test_mistakes_are_one_error(tmp_path: Path) -> None:
    with pytest.raises(maskmill.UserError, match=r"train\.stepz"):
        maskmill.load_config("demo", {"train.stepz": 1})
    with pytest.raises(maskmill.UserError):
        next(maskmill.read_shards(tmp_path))
