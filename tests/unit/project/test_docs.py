"""The pages of docs/ cannot rot: their Python runs, and their tables name what the code has."""

import re
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from data_pipeline import rng
from data_pipeline.records import COLUMNS
from data_pipeline.settings import DataSettings
from data_pipeline.shards.index import BLOCK_FIELDS, ShardEntry
from data_pipeline.sources.cleaning import Counts
from tests.command_line import ROOT, Maskmill, setting, write_text
from tests.factories.encoders import encoder_folder

ELSEWHERE = ROOT / "docs/develop/objective.md"
"""Its blocks are files: tests/smoke/test_adding_an_objective.py writes them."""
PYTHON = ROOT / "docs/reference/python.md"
FORMAT, PREPARATION = "reference/shard_format.md", "reference/preparation.md"
PAGES = sorted(page for page in (ROOT / "docs").rglob("*.md") if page != ELSEWHERE)


def blocks(page: Path) -> list[tuple[int, str]]:
    """(line, code) of the Python blocks of a page, but those that need a model: tests/smoke/test_readme.py has one."""
    text = page.read_text(encoding="utf-8")
    found = re.finditer(r"(?<!test_readme\.py\. -->\n)^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [(text[: match.start()].count("\n") + 1, match[1]) for match in found]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_python_blocks_run(
    page: Path, tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other, in a folder that holds a text, models, and, where the page makes none, shards."""
    if page == PYTHON:
        write_text(tmp_path / "my_text.txt", documents=60)
    else:
        shutil.copytree(setting(tiny, "data.out"), tmp_path / "shards")
    shutil.copytree(encoder_folder("bert"), tmp_path / "models" / "base")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for line, code in blocks(page):
        exec(compile("\n" * line + code, str(page), "exec"), names)


@pytest.mark.parametrize(
    ("sequences", "objective"),
    [("full_sentences", "mlm"), ("doc_sentences", "mlm"), ("two_segments", "electra")],
)
def test_batches_of_python_md_are_of_any_sequences(
    sequences: str,
    objective: str,
    tiny: list[str],
    maskmill: Maskmill,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Single sequences and pairs without labels too."""
    kind = (f"data.sequences={sequences}", f"objective.name={objective}", f"data.out={tmp_path}/shards")
    maskmill("prepare", "demo", *tiny, *kind)
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec("import maskmill", names)
    for _, code in blocks(PYTHON):
        if "maskmill.prepare(" not in code and "maskmill.evaluate(" not in code:
            exec(code, names)
    assert names["batch"]["input_ids"].shape[0] == 4
    assert names["loss"].isfinite()
    assert "next_sentence_label" not in names["batch"]


def test_the_site_builds(tmp_path: Path) -> None:
    """As `make docs` does: each link and anchor that does not hold is an error."""
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--site-dir",
        str(tmp_path / "site"),
    ]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    for page in PAGES:
        assert (tmp_path / "site" / page.relative_to(ROOT / "docs").with_suffix(".html")).is_file()
    front = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert "fonts.googleapis" not in front


def section(name: str, heading: str) -> str:
    """The part of a page of docs/ under a heading."""
    page = (ROOT / "docs" / name).read_text(encoding="utf-8")
    _, heads, text = page.partition(f"# {heading}\n")
    assert heads, f"docs/{name} has no heading {heading!r}"
    return re.split(r"^#+ ", text, flags=re.MULTILINE)[0]


def test_the_pages_of_data_name_what_there_is() -> None:
    def first_cells(text: str) -> set[str]:
        rows = re.findall(r"^\|((?: `\w+`)+) \|", text, re.MULTILINE)
        return {name for row in rows for name in re.findall(r"`(\w+)`", row)}

    deciding = {field.name for field in fields(DataSettings) if field.metadata.get("affects_bytes")}
    assert first_cells(section(PREPARATION, "What decides the bytes")) == deciding
    assert first_cells(section(PREPARATION, "Counts of the text")) == {field.name for field in fields(Counts)}
    assert first_cells(section(FORMAT, "Columns")) == set(COLUMNS)
    assert first_cells(section(FORMAT, "index.json")) == set(ShardEntry._fields)
    assert set(re.findall(r'"(\w+)": ', section(FORMAT, "Block tables"))) == {"blocks", *BLOCK_FIELDS}
    purposes = dict(re.findall(r"^\| ([A-Z_]+) \| (\d+) \|", section(FORMAT, "Random draws"), re.MULTILINE))
    assert {name: getattr(rng, name) for name in purposes} == {n: int(v) for n, v in purposes.items()}
