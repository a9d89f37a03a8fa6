"""docs/develop/study.md works as it stands: its file is a study, its commands run it, on a small text."""

import json
import re
import shlex
from pathlib import Path

import pytest

from pretrain.run.machine import machine_name
from tests.command_line import ROOT, Maskmill, write_text

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning", "ignore::FutureWarning"
    ),  # of what training imports
]

PAGE = (ROOT / "docs/develop/study.md").read_text(encoding="utf-8")
BLOCK = re.compile(
    r"^<!-- (?:This block is written to (?P<file>\S+)\.|The commands of this block are run\.) -->\n"
    r"```\w*\n(?P<code>.*?)^```",
    re.DOTALL | re.MULTILINE,
)
SMALL = [
    *("data.sequence_length=32", "data.duplicates=keep", "data.held_out=0.2", "data.block_examples=16"),
    *(
        "data.shard_tokens=2000",
        "data.workers=1",
        "vocabulary.size=300",
        "encoder.layers=1",
        "encoder.hidden=32",
    ),
    *("encoder.heads=2", "encoder.intermediate=64", "encoder.max_positions=32", "train.global_batch=8"),
    *("train.micro_batch=8", "train.steps=6", "train.compile=off", "run.ranks=1", "run.threads=1"),
]
"""In place of the demo's text and size, which would take minutes."""


def runs_in(said: str) -> list[str]:
    """The runs that were measured."""
    return re.findall(r"^(\w+-\d): held_out_mask_loss", said, re.MULTILINE)


def test_the_page_makes_a_study(tmp_path: Path, maskmill: Maskmill, study_here: None) -> None:
    blocks = list(BLOCK.finditer(PAGE))
    assert len(blocks) == PAGE.count("<!-- ") == 3
    write_text(tmp_path / "text.txt", documents=60)
    said = []
    for found in blocks:
        if found["file"]:
            (tmp_path / found["file"]).write_text(found["code"], "utf-8")
            continue
        for line in found["code"].splitlines():
            small = [f"data.sources={tmp_path}/text.txt", *SMALL]
            said.append(maskmill(*shlex.split(line)[1:], *small, cwd=tmp_path).stdout)
    plan, first, again = said
    assert "narrow" not in plan  # its label
    assert "0.02, as BERT: 3 runs" in plan
    assert "examples, masks equal in all 2 arms" in first
    assert "has learnt no context (1 of 1 seeds): not compared" in first  # of so few steps
    assert runs_in(first) == ["narrow-1", "wide-1"]
    # what was measured was not measured again
    assert runs_in(again) == ["narrow-2", "wide-2"]
    folder = tmp_path / "runs/wider"
    result = json.loads((folder / "result.json").read_text())
    assert {run["machine"] for run in result["measured"]} == {machine_name()}
    assert all(re.fullmatch(r"20\d\d-\d\d-\d\d", run["date"]) for run in result["measured"])
    assert result["missing"] == []
    assert len(result["measured"]) == 4
    assert all(len(one["curve"]) >= 6 for one in result["measured"])
    assert {path.name for path in folder.iterdir()} >= {"README.md", "table.md", "picture.svg", "runs"}
    assert (folder / "table.md").read_text() in again
    assert "| 0.05, as the demo | 2 |" in again
    # the same study with other settings is another one
    wrong = maskmill(
        "study", "wider.yaml", "--out", "runs/wider", *small, "optim.lr=0.5", cwd=tmp_path, code=2
    )
    assert "was measured with other settings" in wrong.stderr
    # an arm that differs where it must not is found before anything is trained
    (tmp_path / "wrong.yaml").write_text((tmp_path / "wider.yaml").read_text().replace("masks]", "weights]"))
    wrong = maskmill("study", "wrong.yaml", "--out", "runs/wider", *small, cwd=tmp_path, code=2)
    assert "must have the same weights, and differ in encoder." in wrong.stderr
