"""Nothing asks which objective it has: what one differs in stands in the registry, its own files and its recipes."""

import ast
from collections.abc import Iterator
from pathlib import Path

from pretrain.objectives.registry import OBJECTIVES

ROOT = Path(__file__).parents[3]
PACKAGES = ("data_pipeline", "pretrain", "launch")


def comparisons(tree: ast.AST) -> Iterator[ast.Compare]:
    """Comparisons of some `name` with the name of an objective."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Compare):
            continue
        texts = {n.value for n in ast.walk(node) if isinstance(n, ast.Constant)}
        names = {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
        if texts & set(OBJECTIVES) and names & {"name", "objective"}:
            yield node


def test_no_file_compares_with_a_members_name() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in comparisons(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert found == []


def test_the_check_finds_one() -> None:
    tree = ast.parse("if config.objective.name in ('albert', 'x'): pass\nif a.name == 'lamb': pass")
    assert [node.lineno for node in comparisons(tree)] == [1]
