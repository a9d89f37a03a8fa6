"""The README cannot rot: its commands and its Python snippet are run as they stand."""

import re
import shlex
from pathlib import Path

from tests.command_line import ROOT, Maskmill, write_text

README = (ROOT / "README.md").read_text(encoding="utf-8")


def block_after(marker: str) -> str:
    return re.search(r"```\w*\n(.*?)```", README[README.index(marker) :], re.DOTALL).group(1)  # type: ignore[union-attr]


def test_from_text_to_model(maskmill: Maskmill, tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    write_text(tmp_path / "my_text.txt", documents=60)
    for line in block_after("run by tests/smoke/test_readme.py").splitlines():
        command, *arguments = shlex.split(line, comments=True)
        assert command == "maskmill"
        maskmill(*arguments, cwd=tmp_path, process=True)
    snippet = block_after("The exported folder is a")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(compile(snippet, "README.md", "exec"), names)
    assert names["tokenizer"].mask_token == "[MASK]"
    assert names["model"].config.vocab_size == len(names["tokenizer"])


def test_the_table_of_verbs_is_the_command_line(maskmill: Maskmill) -> None:
    listed = set(re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE))
    shown = set(re.findall(r"^  (\w+)  ", maskmill("--help").stdout.split("Commands:")[1], re.MULTILINE))
    assert listed == shown


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
