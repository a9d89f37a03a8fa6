"""Show results in a terminal: a row per task and split, what was measured beside what needs no pretraining."""

from collections.abc import Iterator, Sequence
from typing import Any

from pretrain.run.task_scores import HEADS, shown, task_scores


def result_lines(notes: Sequence[dict[str, Any]]) -> list[str]:
    """Return an aligned table of the headline metrics in percent: medians over the seeds, where there are several; then
    the other metrics and notes of each task, a line each."""
    rows = [HEADS, *(score.cells for note in notes for score in task_scores(note))]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADS))]
    lines = [
        "  ".join(
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return [*lines, *(line for note in notes for line in _remarks(note))]


def _remarks(note: dict[str, Any]) -> Iterator[str]:
    name = note["task"]
    for split, scores in note["scores"].items():
        others = [f"{m} {shown(m, found['median'])}" for m, found in scores.items() if m != note["headline"]]
        if others:
            yield f"{name} {split}: {', '.join(others)}"
    if groups := note["details"].get("groups"):
        yield f"{name}: {', '.join(f'{group} {value:.1f}' for group, value in groups.items())}"
    if note["details"].get("unknown_share"):
        yield f"{name}: {note['details']['unknown_share']:.2f} % of the tokens are unknown to the vocabulary"
    for remark in note["notes"]:
        yield f"{name}: {remark}"
