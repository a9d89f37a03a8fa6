"""docs/benchmarks.md: each prediction stands beside what was measured, or beside words that say that nothing was."""

import re

from tests.benchmarks.gpu_rows import ROWS
from tests.command_line import ROOT

PAGE = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")


def table(after: str) -> list[list[str]]:
    """The cells of each row, the head first, of the first table behind these words."""
    _, found, text = PAGE.partition(after)
    assert found, f"docs/benchmarks.md does not say {after!r}"
    lines = re.search(r"^\|.+\n\|[-|]+\|\n(?:\|.+\n)+", text, re.MULTILINE)
    assert lines
    head, _, *rows = lines[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in (head, *rows)]


def test_no_change_is_without_prediction_and_measurement_or_words_instead() -> None:
    head, *rows = table("Every change that was predicted")
    assert head == ["what", "predicted", "measured without a GPU", "measured on"]
    assert len(rows) > 15
    for row in rows:
        assert len(row) == len(head), row
        assert all(row), row


def test_the_goal_stands_beside_what_was_reached() -> None:
    goal = ROWS["large-128"]
    head, *rows = table("### BERT-large")
    told = {row[0]: row[1:] for row in rows}
    speeds = [float(cell.strip("*").replace(",", "")) for cell in told["examples/s"]]
    for name, figure in (("required", goal.target), ("aimed at", goal.aim)):
        (label,) = [label for label in told if label.startswith(name)]
        assert label.endswith(f": {figure:,}")
        shares = [float(found[0]) for cell in told[label] if (found := re.search(r"\d\.\d\d", cell))]
        assert shares == [round(speed / figure, 2) for speed in speeds[: len(shares)]]
        assert len(shares) == len(head) - 1
        assert f"{goal.micro_batch / figure * 1e3:.1f}" in PAGE
