"""All parts of the first hour with a GPU start and end on the pretended one. What they find there means nothing."""

import json
from pathlib import Path
from typing import Any

import pytest
from pretended import ONLY_RANK, ZEROS, on_gpu
from test_marked_tests import LEAST

from tests.gpu_day.carry import LONG, SHORT, maskmill
from tests.gpu_day.members import prepare_members

pytestmark = pytest.mark.fake_gpu

DAY = "tests/gpu_day/day.py"
STUDY = """
title: Two rates
question: Does it end?
recipe: demo
evaluate:
  - {task: held_out, data: shards}
  - {task: attention, data: shards, metrics: [sep_attention]}
arms: {a: {}, b: {settings: {optim.lr: 1e-3}}}
settings:
"""
"""Scored as the shipped ones are that read no files of tasks; its settings follow."""


@pytest.fixture(scope="module")
def carried(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of both lengths; the environment has what the wheels bring."""
    folder = tmp_path_factory.mktemp("carried")
    text = ["data.held_out=0.01", f"data.vocab={folder}/vocabulary", "vocabulary.size=600"]
    for arguments in (
        ("vocab", "demo", *text),
        ("prepare", "demo", *text, f"data.out={folder}/short", *SHORT),
        ("prepare", "demo", *text, f"data.out={folder}/long", *LONG),
    ):
        maskmill(*arguments)
    prepare_members(folder / "members", maskmill)
    return folder


def figures_of(
    part: str, carried: Path, out: Path, *more: str, status: str = "done", code: int = 0
) -> dict[str, Any]:
    """What a part finds, which must end so."""
    given = [str(out), f"--carried={carried}", "--tiny", "--minutes=40", "--parts", part, *more]
    on_gpu(DAY, *given, code=code, **ONLY_RANK, **ZEROS)
    found = json.loads((out / "results.json").read_text())
    assert "H100" in found["machine"]["gpu"]
    assert found["parts"][part]["status"].startswith(status)
    return dict(found["parts"][part]["figures"])


@pytest.mark.parametrize("part", ["twice", "resume", "family", "stages", "bench", "peers", "lamb", "mini"])
def test_a_part_ends(part: str, carried: Path, tmp_path: Path) -> None:
    figures = figures_of(part, carried, tmp_path / "out")
    if part == "bench":
        assert len(figures["rows"]) == 16
    if part == "peers":
        assert len(figures["rows"]) == 3
    if part == "mini":
        assert figures["step"] == 4
        assert (tmp_path / "out/mini.tar.0").is_file()


def test_the_part_of_tests_fails_by_their_values(tmp_path: Path) -> None:
    """They have begun: test_marked_tests.py looks at each."""
    figures = figures_of("tests", tmp_path, tmp_path / "out", status="failed: ", code=1)
    assert figures["passed"] + len(figures["failed"]) >= LEAST
    assert figures["skipped"] == []


def test_ranks_need_two_gpus(tmp_path: Path) -> None:
    assert figures_of("ranks", tmp_path, tmp_path / "out", status="left out: needs two GPUs") == {}


def test_the_studies_end(tiny: list[str], tmp_path: Path) -> None:
    """One of two runs side by side, which are trained, exported and scored; those that are shipped take minutes."""
    given = dict(each.split("=", 1) for each in [*tiny, "train.steps=2", "run.ranks=1", "train.compile=off"])
    study = tmp_path / "rates.yaml"
    study.write_text(STUDY + "\n".join(f"  {key}: {json.dumps(value)}" for key, value in given.items()))
    assert figures_of("studies", tmp_path, tmp_path / "out", "--studies", str(study)) == {
        "rates": "done, 2 runs"
    }
    measured = json.loads((tmp_path / "out/studies/rates/cells/a-1.json").read_text())
    assert "attention.sep_attention" in measured["figures"]
