"""Blanks of held-out text as `fill` shows them: beside the true words, counted, and only where there are any."""

from pathlib import Path

import pytest

from data_pipeline.errors import UserError
from pretrain.export.fill import Sample, held_out_blanks, run_and_export, write_samples
from pretrain.run.folder import SAMPLES
from tests.command_line import Maskmill


def test_guesses_stand_beside_the_true_word_and_are_counted(tmp_path: Path) -> None:
    samples = [
        Sample("… the united", ".", "nations", [("nations", 0.75), ("states", 0.2)]),
        Sample("port of", "", "spain", [("france", 0.5), ("spain", 0.4)]),
    ]
    write_samples(tmp_path, 900, samples, held_out=True)
    assert held_out_blanks(tmp_path) == [
        "… the united [MASK] .\n    nations 75.0%   states 20.0%   (right)",
        "port of [MASK]\n    france 50.0%   spain 40.0%   (it was spain)",
        "1 of 2 right; blanks in held-out text that nobody chose",
    ]


def test_text_that_was_trained_on_is_not_called_held_out(tmp_path: Path) -> None:
    write_samples(tmp_path, 900, [Sample("the", "sea", "deep", [("deep", 0.9)])], held_out=False)
    with pytest.raises(UserError, match="maskmill export"):
        held_out_blanks(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", '{"held_out": true, "samples": 3}'])
def test_without_blanks_it_says_what_to_do(tmp_path: Path, text: str) -> None:
    (tmp_path / SAMPLES).write_text(text)
    with pytest.raises(UserError, match="maskmill export"):
        held_out_blanks(tmp_path)


def test_damaged_guesses_are_no_answer(tmp_path: Path) -> None:
    (tmp_path / SAMPLES).write_text(
        '{"held_out": true, "samples": [{"word": "sea", "guesses": [1, ["a"], [{}, "x"]]}]}'
    )
    assert held_out_blanks(tmp_path)[-1].startswith("0 of 1 right")


def test_a_run_stands_for_its_export(tmp_path: Path) -> None:
    assert run_and_export(tmp_path / "models/base") == (tmp_path / "models", tmp_path / "models/base")
    (tmp_path / "config.yaml").touch()
    assert run_and_export(tmp_path) == (tmp_path, tmp_path / "export")
    assert run_and_export(tmp_path / "export") == (tmp_path, tmp_path / "export")


def test_without_text_it_says_what_is_wanted(maskmill: Maskmill, tmp_path: Path) -> None:
    assert "nothing to fill" in maskmill("fill", str(tmp_path), code=2).stderr
