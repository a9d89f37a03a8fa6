"""Read the scores that `maskmill evaluate` leaves beside a model, and put them into words.

They are in RUN/evaluation/TASK/result.json, one file for each task.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pretrain.run.files import number, table

EVALUATION, RESULT = "evaluation", "result.json"
OF_A_PAIR = ("use_", "harm_", "cut_")
"""How the names of figures begin that say, in nats, what one segment of a pair is to the other."""
HEADS = ("task", "metric", "score", "lowest to highest", "not pretrained", "trivial")


class TaskScore(NamedTuple):
    """The metric that a task is known by, on one of its splits: medians over the seeds, in percent unless it is a loss,
    bits or a perplexity."""

    task: str
    split: str
    """Empty where the task has one."""
    metric: str
    median: float
    lowest: float
    highest: float
    seeds: int
    floor: "TaskScore | None"
    """Of the same encoder, not pretrained."""
    trivial: float | None
    """Of the best answer that needs no input."""
    weights: str
    """SHA-256 of the weights that were scored, as `weights_hash` gives it."""

    @property
    def cells(self) -> tuple[str, ...]:
        """What the columns HEADS show."""
        floor = self.floor
        return (
            f"{self.task} {self.split}".strip(),
            self.metric,
            shown(self.metric, self.median),
            self._range,
            floor.whole if floor else "",
            "" if self.trivial is None else shown(self.metric, self.trivial),
        )

    @property
    def whole(self) -> str:
        """Median and range in one cell."""
        return f"{shown(self.metric, self.median)} {self._range}".strip()

    @property
    def _range(self) -> str:
        ends = f"({shown(self.metric, self.lowest)} to {shown(self.metric, self.highest)})"
        return ends if self.seeds > 1 else ""


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Return what the results in a folder of them hold, by task; what cannot be read is left out."""
    return [note for path in sorted(folder.glob(f"*/{RESULT}")) if (note := table(path))]


def read_task_scores(run: Path) -> list[TaskScore]:
    """Return the scores in a run folder, by task; what cannot be read is left out."""
    return [score for note in read_results(run / EVALUATION) for score in task_scores(note)]


def task_scores(note: dict[str, Any], metric: str = "") -> Iterator[TaskScore]:
    """Yield the score of each split of a result, by the metric that its task is known by or another one; a split
    without a readable one is left out."""
    metric, splits = metric or str(note.get("headline")), _dict(note.get("scores"))
    weights = str(_dict(note.get("encoder")).get("weights") or "")
    for split, scores in splits.items():
        name = (str(note.get("task")), split if len(splits) > 1 else "", metric)
        trivial = number(_dict(_dict(note.get("trivial")).get(split)).get(metric))
        of_floor = _dict(_dict(note.get("not_pretrained")).get(split)).get(metric)
        floor = _score(name, of_floor, None, None, "")
        if score := _score(name, _dict(scores).get(metric), floor, trivial, weights):
            yield score


def _score(
    name: tuple[str, str, str], found: Any, floor: TaskScore | None, trivial: float | None, weights: str
) -> TaskScore | None:
    values = [number(_dict(found).get(key)) for key in ("median", "min", "max")]
    median, lowest, highest = values
    if median is None or lowest is None or highest is None:
        return None
    several = _dict(found).get("values")
    seeds = len(several) if isinstance(several, list) else 1
    return TaskScore(*name, median, lowest, highest, seeds, floor, trivial, weights)


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def shown(metric: str, value: float) -> str:
    """Write a value: losses and differences of them (nats), bits and ratios with three decimals, percentages and
    perplexities with one.

    >>> shown("mask_loss_is_next", 2.5), shown("use_segment_b", 0.062), shown("f1", 84.66), shown("perplexity", 1234.56)
    ('2.500', '0.062', '84.7', '1,234.6')
    """
    fine = "loss" in metric or metric.startswith(("bits", "sep_gradient", *OF_A_PAIR))
    return f"{value:.3f}" if fine else f"{value:,.1f}"
