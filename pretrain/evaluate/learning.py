"""Read from a run's metrics what it has learnt so far, and judge it."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pretrain.evaluate.baselines import with_majority
from pretrain.evaluate.verdict import Finding, Losses, findings
from pretrain.objectives.metrics import headline_of, is_shown
from pretrain.run.tolerant_json import tables

HEAD = 1 << 16
"""Bytes at the beginning of metrics.jsonl that are read for the first loss."""


def learning_of(
    metrics: Path, summary: dict[str, Any], newest_lines: Iterable[dict[str, Any]]
) -> tuple[dict[str, Any], list[Finding]]:
    """Return the newest training and evaluation figures by name, and the findings about them.

    `metrics`: the file whose beginning is read; `newest_lines`: those at its end."""
    lines = list(newest_lines)
    trained = [line for line in lines if line.get("kind", "train") == "train" and "loss" in line]
    evaluated = [line for line in lines if line.get("kind") == "eval"]
    data = summary.get("data")
    counts = data.get("held_out") if isinstance(data, dict) else None
    newest = with_majority({**summary, **(trained or [{}])[-1], **(evaluated or [{}])[-1]}, counts)
    headline = headline_of(summary)
    figures = {name: value for name, value in newest.items() if is_shown(name, headline)}
    losses = Losses()
    for line in [*tables(_beginning_of(metrics)), *lines]:
        losses.add(line)
    untrained = bool(evaluated) and evaluated[-1].get("step") == 0
    return figures, findings({} if untrained else figures, losses.ends, headline)


def _beginning_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(HEAD).decode(errors="replace")
    except OSError:
        return ""
