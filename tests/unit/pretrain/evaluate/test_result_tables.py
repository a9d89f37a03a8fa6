"""The table of one encoder's results, on results of known figures. Beside others: test_evaluate_compare.py."""

from typing import Any

from pretrain.evaluate.compare import result_lines
from pretrain.evaluate.results import spread


def note(
    task: str, scores: dict[str, list[float]], floor: dict[str, list[float]], **details: Any
) -> dict[str, Any]:
    """A result of one split, known by its first metric."""
    return {
        "task": task,
        "headline": next(iter(scores)),
        "scores": {"dev": {metric: spread(values) for metric, values in scores.items()}},
        "not_pretrained": {"dev": {metric: spread(values) for metric, values in floor.items()}},
        "trivial": {"dev": dict.fromkeys(scores, 50.0)},
        "details": details,
        "notes": [],
    }


BLIMP = note(
    "blimp",
    {"accuracy": [69.5], "group_accuracy": [53.25]},
    {"accuracy": [49.0, 50.0, 51.5], "group_accuracy": [48.0, 52.0, 54.0]},
    groups={"ellipsis": 40.0, "binding": 66.5},
    unknown_share=1.234,
)


def test_blimp_has_both_of_its_means_in_the_terminal() -> None:
    assert result_lines([BLIMP]) == [
        "task   metric    score  lowest to highest       not pretrained  trivial",
        "blimp  accuracy   69.5                     50.0 (49.0 to 51.5)     50.0",
        "blimp dev: group_accuracy 53.2",
        "blimp: ellipsis 40.0, binding 66.5",
        "blimp: 1.23 % of the tokens are unknown to the vocabulary",
    ]
    known = {**BLIMP, "details": {**BLIMP["details"], "unknown_share": 0.0}}
    assert result_lines([known]) == result_lines([BLIMP])[:-1]


def test_as_markdown_the_table_alone_is_another() -> None:
    lines = result_lines([BLIMP], as_markdown=True)
    assert lines[:3] == [
        "| task | metric | score | lowest to highest | not pretrained | trivial |",
        "| --- | --- | --- | --- | --- | --- |",
        "| blimp | accuracy | 69.5 |  | 50.0 (49.0 to 51.5) | 50.0 |",
    ]
    assert lines[3:] == result_lines([BLIMP])[2:]
