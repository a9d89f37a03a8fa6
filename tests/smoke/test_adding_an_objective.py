"""docs/develop/objective.md works as it stands: its changes are made in a copy of the packages, its commands run."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line import ROOT, environ, write_text

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs/develop/objective.md").read_text(encoding="utf-8")
BLOCK = re.compile(
    r"^<!-- (?:This block is the new file (?P<new>\S+)\.|"
    r"This block goes into (?P<into>\S+) after the line `(?P<line>.*?)`\.|"
    r"The commands of this block are run\.) -->\n"
    r"```\w*\n(?P<code>.*?)^```",
    re.DOTALL | re.MULTILINE,
)
SMALL = """extends: demo
data: {{sources: ["{text}"], sequence_length: 32, held_out: 0.2, shard_tokens: 2000, block_examples: 16, workers: 1}}
vocabulary: {{size: 300}}
run: {{ranks: 1}}
train: {{global_batch: 16, micro_batch: 16, eval_every: 0, checkpoint_every: 0, eval_examples: 32, compile: "off"}}
encoder: {{layers: 1, hidden: 32, heads: 2, intermediate: 64, max_positions: 32}}
"""
"""In place of the demo, whose text would take minutes."""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages with the page's changes; the demo's recipe is made small."""
    folder = tmp_path_factory.mktemp("copy")
    for package in ("data_pipeline", "pretrain", "launch", "tests"):
        ignored = shutil.ignore_patterns("__pycache__", "artefacts", "golden")
        shutil.copytree(ROOT / package, folder / package, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", folder)
    for found in BLOCK.finditer(PAGE):
        if found["new"]:
            path = folder / found["new"]
            assert not path.exists(), f"{path} is there already"
            path.write_text(found["code"], "utf-8")
        elif found["into"]:
            insert(folder / found["into"], found["line"], found["code"])
    recipes = folder / "launch/recipes"
    (recipes / "demo.yaml").rename(recipes / "whole_demo.yaml")
    write_text(folder / "text.txt", documents=60)
    small = SMALL.format(text=folder / "text.txt").replace("extends: demo", "extends: whole_demo")
    (recipes / "demo.yaml").write_text(f"# The demo, made small.\n{small}", "utf-8")
    return folder


def insert(path: Path, after: str, code: str) -> None:
    """Puts `code` behind the one line that reads `after`."""
    lines = path.read_text("utf-8").splitlines(keepends=True)
    places = [number for number, line in enumerate(lines) if line == f"{after}\n"]
    assert len(places) == 1, f"{path.name} has {len(places)} lines {after!r}"
    lines.insert(places[0] + 1, code)
    path.write_text("".join(lines), "utf-8")


def in_copy(copy: Path, *arguments: str) -> str:
    """Runs Python in the copy; what it prints."""
    environment = environ(PYTHONPATH=str(copy), OMP_NUM_THREADS="1")
    done = subprocess.run(
        [sys.executable, *arguments], cwd=copy, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_every_block_of_the_page_is_used() -> None:
    """A comment in other words would be passed over."""
    assert len(re.findall(r"<!-- Th", PAGE)) == len(BLOCK.findall(PAGE)) == 7


def test_commands_of_the_page_train_and_export_the_objective(copy: Path) -> None:
    commands = [line for found in BLOCK.finditer(PAGE) if not found["new"] and not found["into"] for line in
                found["code"].splitlines()]  # fmt: skip
    assert {"vocab", "prepare", "train", "export"} < {command.split()[1] for command in commands}
    printed = [in_copy(copy, "-m", "launch.cli", *shlex.split(command)[1:]) for command in commands]
    assert "smoothed: Train a masked language model with smoothed labels" in printed[0]
    assert "BertForMaskedLM" in (copy / "runs/smoothed_tiny/export/config.json").read_text("utf-8")
    assert "even" in (copy / "runs/smoothed_tiny/metrics.jsonl").read_text("utf-8")


def test_tests_over_the_registry_run_for_the_new_line(copy: Path) -> None:
    units = (
        "objectives/test_objectives_registry.py",
        "objectives/test_without_masks.py",
        "training/test_device_feed.py",
    )
    places = [*(f"tests/unit/pretrain/{name}" for name in units), "tests/reference/test_export.py"]
    said = in_copy(copy, "-m", "pytest", "-n0", "-p", "no:cacheprovider", "-k", "smoothed", *places)
    assert int(re.search(r"(\d+) passed", said)[1]) >= 12, said


def test_the_page_s_own_test_passes_and_can_fail(copy: Path) -> None:
    path = "tests/unit/pretrain/objectives/test_smoothed.py"
    given = ("-m", "pytest", "-n0", "-p", "no:cacheprovider", path)
    assert "1 passed" in in_copy(copy, *given)
    source = copy / "pretrain/objectives/smoothed.py"
    kept = source.read_text("utf-8")
    source.write_text(kept.replace(".mean(-1)", ".sum(-1)"), "utf-8")
    with pytest.raises(AssertionError, match="1 failed"):
        in_copy(copy, *given)
    source.write_text(kept, "utf-8")
