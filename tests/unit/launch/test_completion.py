"""Shell completion, as a shell asks for it: through typer's variables in the environment, and once through bash."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from launch.recipe import setting_names
from launch.recipes import recipe_names
from tests.command_line import ROOT, command, environ


def completed(line: str, word: int | None = None) -> list[str]:
    """What bash is told for `line`, whose words it parts at blanks and at `=`."""
    words = line.split(" ")
    environment = environ(
        _MASKMILL_COMPLETE="complete_bash",
        COMP_WORDS=line,
        COMP_CWORD=str(len(words) - 1 if word is None else word),
    )
    done = subprocess.run(command(), env=environment, capture_output=True, text=True, check=False)
    assert not done.stderr
    return done.stdout.splitlines()


def test_verbs_recipes_and_keys() -> None:
    assert completed("maskmill tr") == ["train"]
    assert completed("maskmill slu") == ["slurm"]
    assert completed("maskmill train bert_b") == ["bert_base"]
    assert completed("maskmill train demo train.ste") == ["train.steps=", "train.steps=1000"]
    assert completed("maskmill slurm demo --no") == ["--nodes"]


@pytest.mark.parametrize("typed", ["train.precision=f", "train.precision = f"])
def test_choices_of_a_setting(typed: str) -> None:
    """zsh and fish hand over the whole word; bash parts it at `=` and replaces what is behind it."""
    whole = "" if " " in typed else "train.precision="
    assert completed(f"maskmill train demo run.ranks = 2 {typed}") == [
        f"{whole}fp32",
        f"{whole}fp16",
    ]


def test_what_bash_puts_on_the_line(tmp_path: Path) -> None:
    """The function that `--show-completion bash` prints, sourced and called by a real bash."""
    program = tmp_path / "maskmill"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(ROOT))} exec {shlex.join(command())} "$@"\n')
    program.chmod(0o755)
    shown = subprocess.run(
        [program, "--show-completion", "bash"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
    ).stdout
    script = f"""{shown}
    try() {{ COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _maskmill_completion maskmill; echo "${{COMPREPLY[*]}}"; }}
    try maskmill train demo train.prec
    try maskmill train demo zero.stage =
    try maskmill export runs/ba"""
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        cwd=tmp_path,
    )
    keys, stages, files = done.stdout.split("\n")[:3]
    assert keys.split()[0] == "train.precision="
    assert len(keys.split()) > 1, "a lone word would get a blank behind it"
    assert stages.split() == ["0", "1", "2", "3"]
    assert files == "", "nothing of ours: bash goes on with file names (-o default)"
    assert "-o default" in shown


def test_all_recipes_and_all_settings_are_offered() -> None:
    assert completed("maskmill train ") == recipe_names()
    keys = {word.partition("=")[0] for word in completed("maskmill train demo ")}
    assert keys == set(setting_names()) - {"phases"}
    assert set(completed("maskmill settings ")) >= {"train.", "optim.lr"}
