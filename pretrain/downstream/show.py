"""Show results in a terminal: a row per task and split, what was measured beside what needs no pretraining."""

from collections.abc import Iterator, Sequence
from typing import Any

HEADS = ("task", "metric", "score", "lowest to highest", "not pretrained", "trivial")


def result_lines(notes: Sequence[dict[str, Any]]) -> list[str]:
    """Return an aligned table of the headline metrics in percent: medians over the seeds, where there are several; then
    the other metrics and notes of each task, a line each."""
    rows = [HEADS, *(row for note in notes for row in _rows(note))]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADS))]
    lines = [
        "  ".join(
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return [*lines, *(line for note in notes for line in _remarks(note))]


def _rows(note: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    metric = note["headline"]
    for split, scores in note["scores"].items():
        found = scores[metric]
        floor = note["not_pretrained"].get(split, {}).get(metric)
        trivial = note["trivial"].get(split, {}).get(metric)
        yield (
            note["task"] if len(note["scores"]) == 1 else f"{note['task']} {split}",
            metric,
            shown(metric, found["median"]),
            _range(metric, found),
            f"{shown(metric, floor['median'])} {_range(metric, floor)}".strip() if floor else "",
            "" if trivial is None else shown(metric, trivial),
        )


def shown(metric: str, value: float) -> str:
    """Write a value: losses (nats) and bits with three decimals, percentages and perplexities with one.

    >>> shown("mask_loss_is_next", 2.5), shown("f1", 84.66), shown("perplexity", 12345.6)
    ('2.500', '84.7', '12,345.6')
    """
    return f"{value:.3f}" if "loss" in metric or metric.startswith("bits") else f"{value:,.1f}"


def _range(metric: str, found: dict[str, Any]) -> str:
    several = len(found["values"]) > 1
    return f"({shown(metric, found['min'])} to {shown(metric, found['max'])})" if several else ""


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
