"""`maskmill evaluate --against`: two commands put two encoders side by side."""

import json
import shlex
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from data_pipeline.errors import UserError
from launch import cli
from tests.factories.encoders import encoder_folder
from tests.factories.tasks import FILES, write

QUICK = ["epochs=1", "max_length=32", "batch=2", "threads=1"]


def call(*arguments: object) -> str:
    result = CliRunner().invoke(cli.app, ["evaluate", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_two_commands_put_two_encoders_side_by_side(tmp_path: Path) -> None:
    """What the other one lacks is made by the command that is named."""
    glue, ours, theirs = (tmp_path / name for name in ("glue", "ours", "theirs"))
    glue.mkdir()
    for task in ("RTE", "CoLA"):
        write(glue / task, FILES[task.lower()])
    for folder, name in ((ours, "bert"), (theirs, "roberta")):
        shutil.copytree(encoder_folder(name), folder)
    same = ["--data", glue, "--no-floor", *QUICK]
    call(ours, "rte", *same, "--seeds", 2)
    both = [theirs, "rte", "cola", *same, "epochs=2", "--against", ours]
    shown = call(*both)
    head, rte, cola = shown.splitlines()[:3]
    found = json.loads((ours / "evaluation/rte/result.json").read_text())["scores"]["dev"]["accuracy"]
    assert head.endswith(str(ours))
    assert rte.endswith(f" {found['median']:.1f} ({found['min']:.1f} to {found['max']:.1f})")
    assert len(cola) < len(rte), "no column of ours"
    assert f"{ours}: rte with epochs=1 (here 2), seeds=2 (here 1)\n" in shown
    line = next(line for line in shown.splitlines() if line.startswith(f"{ours}: cola not scored yet: "))
    command = line.split(": ")[2]
    assert command == (f"maskmill evaluate {ours} cola {' '.join(QUICK)} epochs=2 --data {glue} --no-floor")
    call(*shlex.split(command)[2:])
    again = call(*both, "--markdown")
    assert "not scored yet" not in again
    assert again.startswith("| task | metric | score | lowest to highest | not pretrained | trivial | ")
    with pytest.raises(UserError, match=r"--against .*nowhere: has neither a model nor results"):
        call(theirs, "rte", *same, "--against", tmp_path / "nowhere")


def test_the_command_names_what_was_named_beside_a_suite(tmp_path: Path) -> None:
    data, ours, theirs = (tmp_path / name for name in ("data", "ours", "theirs"))
    data.mkdir()
    for task in ("RTE", "CODAH"):
        write(data / task, FILES[task.lower()])
    for folder in (ours, theirs):
        shutil.copytree(encoder_folder("bert"), folder)
    words = ["codah", "--suite", "glue", "--data", data, "--no-floor", *QUICK]
    shown = call(theirs, *words, "--against", ours)
    line = next(
        line for line in shown.splitlines() if line.startswith(f"{ours}: codah, rte not scored yet: ")
    )
    command = line.split(": ")[2]
    assert (
        command == f"maskmill evaluate {ours} codah {' '.join(QUICK)} --suite glue --data {data} --no-floor"
    )
    call(*shlex.split(command)[2:])
    assert "not scored yet" not in call(theirs, *words, "--against", ours)
