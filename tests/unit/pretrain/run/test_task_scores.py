"""Scores on tasks in a run folder: read as they were written, and damaged files are left out."""

import json
from pathlib import Path
from typing import Any

import pytest

from pretrain.run.files import EVALUATION
from pretrain.run.task_scores import RESULT, read_task_scores


def spread(*values: float) -> dict[str, Any]:
    return {
        "median": sorted(values)[len(values) // 2],
        "min": min(values),
        "max": max(values),
        "values": values,
    }


def note(task: str = "mrpc", **changes: Any) -> dict[str, Any]:
    return {
        "task": task,
        "headline": "f1",
        "encoder": {"weights": "abc"},
        "scores": {"dev": {"f1": spread(80.0, 84.66, 85.0), "accuracy": spread(70.0)}},
        "not_pretrained": {"dev": {"f1": spread(79.5)}},
        "trivial": {"dev": {"f1": 81.22}},
        **changes,
    }


def write(run: Path, *notes: dict[str, Any] | str) -> Path:
    for number, one in enumerate(notes):
        folder = run / EVALUATION / f"{number}"
        folder.mkdir(parents=True)
        (folder / RESULT).write_text(one if isinstance(one, str) else json.dumps(one))
    return run


def test_cells_are_medians_ranges_and_floors(tmp_path: Path) -> None:
    several = {"dev_matched": {"f1": spread(1.0)}, "dev_mismatched": {"f1": spread(2.0)}}
    scores = read_task_scores(
        write(tmp_path, note(), note("mnli", scores=several, not_pretrained={}, trivial={}))
    )
    assert [score.cells for score in scores] == [
        ("mrpc", "f1", "84.7", "(80.0 to 85.0)", "79.5", "81.2"),
        ("mnli dev_matched", "f1", "1.0", "", "", ""),
        ("mnli dev_mismatched", "f1", "2.0", "", "", ""),
    ]
    assert (scores[0].seeds, scores[0].weights) == (3, "abc")


@pytest.mark.parametrize(
    "damaged",
    [
        "",
        "[]",
        "{",
        note(scores=[]),
        note(scores={"dev": {"f1": {"median": "84", "min": 1, "max": 2}}}),
        note(scores={"dev": {"f1": None}}),
        note(headline="other"),
    ],
)
def test_what_cannot_be_read_is_left_out(damaged: Any, tmp_path: Path) -> None:
    scores = read_task_scores(write(tmp_path, damaged, note()))
    assert [score.task for score in scores] == ["mrpc"]
    assert read_task_scores(tmp_path / "none") == []
