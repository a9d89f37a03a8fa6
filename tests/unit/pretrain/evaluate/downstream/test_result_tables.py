"""Tables of results: the terminal's and the one of the docs, on results of known figures."""

import json
from pathlib import Path
from typing import Any

from pretrain.evaluate.downstream.results.files import spread
from pretrain.evaluate.downstream.results.table import result_lines
from pretrain.run.task_scores import RESULT
from tests.benchmarks.evaluation_table import report


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


def test_the_table_of_several_encoders_has_a_row_for_each_mean_of_blimp(tmp_path: Path) -> None:
    rte = note(
        "rte", {"accuracy": [60.0, 62.0], "f1": [1.0, 2.0]}, {"accuracy": [50.0, 61.0], "f1": [1.0, 2.0]}
    )
    for one in (BLIMP, rte):
        (tmp_path / one["task"]).mkdir()
        (tmp_path / one["task"] / RESULT).write_text(json.dumps(one))
    lines = report({"BERT": tmp_path}).splitlines()
    assert [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if line.startswith("| ") and "---" not in line
    ] == [
        ["task", "metric", "BERT", "BERT, not pretrained", "trivial"],
        ["blimp", "accuracy", "69.5", "50.0 (49.0 to 51.5)", "50.0"],
        ["blimp", "group_accuracy", "53.2", "52.0 (48.0 to 54.0)", "50.0"],
        ["rte", "accuracy", "61.0 (60.0 to 62.0)", "55.5 (50.0 to 61.0)", "50.0"],
    ]
    assert lines[-2:] == [
        "BERT, above its floor in every seed: blimp.",
        "BERT, not above its floor in every seed: blimp by group_accuracy, rte.",
    ]
