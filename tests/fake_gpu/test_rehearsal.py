"""All parts of the first hour with a GPU start and end on the pretended one. What they find there means nothing."""

import json
from pathlib import Path

import pytest
from pretended import ONLY_RANK, ZEROS, on_gpu

from tests.gpu_day.carry import LONG, SHORT, maskmill
from tests.gpu_day.members import prepare_members

pytestmark = pytest.mark.fake_gpu

DAY = "tests/gpu_day/day.py"


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


@pytest.mark.parametrize("part", ["twice", "resume", "family", "bench", "fp8", "lamb", "mini"])
def test_a_part_ends(part: str, carried: Path, tmp_path: Path) -> None:
    """`tests` fails by values there, which test_marked_tests.py looks at."""
    given = [str(tmp_path / "out"), f"--carried={carried}", "--tiny", "--minutes=40", "--parts", part]
    on_gpu(DAY, *given, **ONLY_RANK, **ZEROS)
    found = json.loads((tmp_path / "out/results.json").read_text())
    assert "H100" in found["machine"]["gpu"]
    assert found["parts"][part]["status"] == "done"
    figures = found["parts"][part]["figures"]
    if part == "bench":
        assert len(figures["rows"]) == 12
    if part == "mini":
        assert figures["step"] == 4
        assert (tmp_path / "out/mini.tar.0").is_file()
