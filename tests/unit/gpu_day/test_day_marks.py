"""The part `tests` runs every test that is marked for a GPU."""

import ast
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.gpu_day.checks import gpu_tests, marked_files
from tests.gpu_day.runs import ROOT, Day


def has_mark(path: Path) -> bool:
    """Whether a file names the mark, read as Python."""
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == "gpu"
        and getattr(node.value, "attr", getattr(node.value, "id", "")) == "mark"
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
    )


def test_all_marked_tests_lie_where_the_part_looks() -> None:
    marked = {path for path in (ROOT / "tests").rglob("*.py") if has_mark(path)}
    assert len(marked) >= 3
    assert marked == set(marked_files())


@dataclass
class Reporting(Day):
    """Python writes a report and nothing else."""

    given: list[tuple[str, ...]] = field(default_factory=list)

    def python(self, *arguments: str, expected: tuple[int, ...] = (0,)) -> str:
        self.given.append(arguments)
        assert expected == (0, 1), "tests that fail are in the report"
        Path(arguments[-1].partition("=")[2]).write_text('<testsuite><testcase name="one"/></testsuite>')
        return ""


def test_the_part_gives_pytest_those_files_and_reads_its_report(tmp_path: Path) -> None:
    day, figures = Reporting(tmp_path, tmp_path, {}, tiny=True, ends=time.monotonic()), dict[str, Any]()
    gpu_tests(day, figures)
    ((*arguments, report),) = day.given
    assert figures["passed"] == 1
    assert set(map(str, marked_files())) < set(arguments)
    assert arguments[-5:] == ["-m", "gpu", "-p", "no:cacheprovider", "-q"]
    assert report.startswith("--junitxml=")
    assert not list(tmp_path.iterdir())
