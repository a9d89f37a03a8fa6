"""README and docs/ cannot rot: what a page says is run is run, as it stands, and every link leads somewhere.

A comment before a block says what becomes of it: `The commands of this block are run by tests/smoke/test_readme.py`,
`This block is run by ...` (Python), `This block is written to FILE by ...`. All blocks of all pages share one folder.
"""

import re
import shlex
from pathlib import Path

import pytest

from tests.command_line import ROOT, Maskmill, write_text

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
MARKED = re.compile(
    r"^<!-- (?:The commands of this block are|This block is) (?:run|written to (?P<file>\S+)) by "
    r"tests/smoke/test_readme\.py\. -->\n"
    r"```(?P<language>\w*)\n(?P<code>.*?)^```",
    re.DOTALL | re.MULTILINE,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a reader stands: a text, and what the blocks before have left."""
    folder = tmp_path_factory.mktemp("reader")
    write_text(folder / "my_text.txt", documents=60)
    return folder


def carry_out(page: Path, folder: Path, maskmill: Maskmill) -> list[str]:
    """Does what the page's marked blocks say, in their order; returns the commands."""
    commands = []
    for found in MARKED.finditer(page.read_text(encoding="utf-8")):
        if found["file"]:
            (folder / found["file"]).write_text(found["code"], "utf-8")
        elif found["language"] == "python":
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(folder)
                exec(compile(found["code"], str(page), "exec"), {})
        else:
            for line in found["code"].splitlines():
                command, *arguments = shlex.split(line, comments=True)
                assert command == "maskmill", f"{page.name}: {line}"
                as_a_user = arguments[0] == "prepare"  # a process takes seconds to start
                maskmill(*arguments, cwd=folder, process=as_a_user)
                commands.append(arguments[0])
    return commands


@pytest.mark.slow
def test_the_quickstart(folder: Path, maskmill: Maskmill) -> None:
    commands = carry_out(ROOT / "docs/start/quickstart.md", folder, maskmill)
    assert {"plan", "train", "report", "export", "fill", "evaluate", "push"} <= set(commands)
    assert "license: cc0-1.0" in (folder / "mine" / "run" / "export" / "README.md").read_text("utf-8")


def test_no_marked_block_is_overlooked() -> None:
    """A comment that is not written as MARKED wants it would mark nothing."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert len(MARKED.findall(text)) == len(re.findall(r"<!--.*tests/smoke/test_readme\.py", text)), page


def test_the_overview_names_every_verb(maskmill: Maskmill) -> None:
    overview = (ROOT / "docs/index.md").read_text(encoding="utf-8").partition("## The verbs")[2]
    shown = set(re.findall(r"^  (\w+)  ", maskmill("--help").stdout.split("Commands:")[1], re.MULTILINE))
    assert shown <= set(re.findall(r"`(\w+)`", overview))


LINK = re.compile(r"!?\[[^\]]*\]\((?!https?:|mailto:)([^)\s]+)\)")
FENCED = re.compile(r"^( *)```.*?^\1```", re.DOTALL | re.MULTILINE)


def prose(page: Path) -> str:
    """The page without its blocks of code, where brackets mean something else."""
    return re.sub(r"`[^`\n]*`", "", FENCED.sub("", page.read_text(encoding="utf-8")))


def anchors(page: Path) -> set[str]:
    """What its headings are called in links, on GitHub and in mkdocs alike; of equal ones the first."""
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", heading.strip().lower())) for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"links to {link}"
        assert not anchor or anchor in anchors(target), f"links to {link}, of {sorted(anchors(target))}"


def test_every_page_and_picture_is_shown() -> None:
    """A page of docs/ that no other page leads to is read by nobody."""
    linked = {
        (page.parent / link.partition("#")[0]).resolve()
        for page in PAGES
        for link in LINK.findall(prose(page))
        if link.partition("#")[0]
    }
    shown = {*(ROOT / "docs").rglob("*.md"), *(ROOT / "docs" / "images").iterdir()}
    assert {path.name for path in shown if path.resolve() not in linked} <= {"index.md"}
