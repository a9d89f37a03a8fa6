"""Read the scores that `maskmill evaluate` leaves beside a model and that train.probe logs, and put them into words.

Those of a model are in RUN/evaluation/TASK/result.json, one file for each task. What a metric of a task is and how it
is written is in TASK_METRICS; run/metrics.py says that of the metrics of training.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pretrain.run.files import EVALUATION, number, table
from pretrain.run.metrics import HELD_OUT, Metric, metric
from pretrain.run.metrics_log import PROBE_PREFIX, TRIVIAL

RESULT = "result.json"
HEADS = ("task", "metric", "score", "lowest to highest", "not pretrained", "trivial")
ABOUT_SCORES = (
    "Not pretrained is the same encoder with weights drawn at random and trained on the task in the same way; trivial "
    "is the best answer that needs no input."
)
"""What the last two of HEADS are."""


# What the metrics of tasks are, and how they are written.


class TaskMetric(NamedTuple):
    """Metrics whose names begin as `names` has it."""

    names: str
    """A regular expression."""
    decimals: int | None
    """None: as many as the table has for percentages."""
    lower_is_better: bool | None
    """None: they tell what a model does, and no value is better than another."""


TASK_METRICS = (
    TaskMetric("use_|harm_|cut_|sep_gradient|blocked_loss", 3, None),  # nats, ratios
    TaskMetric("sep_|blocked_", None, None),
    TaskMetric(".*loss|bits", 3, True),
    TaskMetric("perplexity", None, True),
    TaskMetric("", None, False),  # percentages
)
"""The first row that matches counts."""


def task_metric(name: str, decimals: int = 1) -> Metric:
    """Return the metric of a task.

    >>> [task_metric(name).text(value) for name, value in (("mask_loss_is_next", 2.5), ("use_segment_b", 0.062))]
    ['2.500', '0.062']
    >>> [task_metric(name).text(value) for name, value in (("f1", 84.66), ("perplexity", 1234.56))]
    ['84.7', '1,234.6']
    """
    row = next(row for row in TASK_METRICS if re.match(row.names, name))
    form = f"{{:,.{decimals if row.decimals is None else row.decimals}f}}"
    return Metric(name, name.replace("_", " "), form.format, lower_is_better=row.lower_is_better)


def study_metric(name: str) -> Metric:
    """Return what a study compares: a metric of a run by its key, or one of a task as TASK.METRIC."""
    task, _, of_task = name.rpartition(".")
    if task:
        return task_metric(of_task, decimals=2)._replace(label=name.replace(".", ", ").replace("_", " "))
    known = metric(name)
    return known._replace(label=f"held-out {known.label}") if name.startswith(HELD_OUT) else known


# The scores.


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
    random_init: "TaskScore | None"
    """Of the same encoder, not pretrained."""
    trivial: float | None
    """Of the best answer that needs no input."""
    weights: str
    """SHA-256 of the weights that were scored, as `weights_hash` gives it."""

    @property
    def cells(self) -> tuple[str, ...]:
        """What the columns HEADS show."""
        text = task_metric(self.metric).text
        return (
            f"{self.task} {self.split}".strip(),
            self.metric,
            text(self.median),
            self._range,
            self.random_init.cell if self.random_init else "",
            "" if self.trivial is None else text(self.trivial),
        )

    @property
    def cell(self) -> str:
        """Median and range in one cell."""
        return f"{task_metric(self.metric).text(self.median)} {self._range}".strip()

    @property
    def _range(self) -> str:
        text = task_metric(self.metric).text
        return f"({text(self.lowest)} to {text(self.highest)})" if self.seeds > 1 else ""


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
        untrained = _dict(_dict(note.get("not_pretrained")).get(split)).get(metric)
        random_init = _score(name, untrained, None, None, "")
        if score := _score(name, _dict(scores).get(metric), random_init, trivial, weights):
            yield score


def _score(
    name: tuple[str, str, str],
    spread: Any,
    random_init: TaskScore | None,
    trivial: float | None,
    weights: str,
) -> TaskScore | None:
    median, lowest, highest = (number(_dict(spread).get(key)) for key in ("median", "min", "max"))
    if median is None or lowest is None or highest is None:
        return None
    values = _dict(spread).get("values")
    seeds = len(values) if isinstance(values, list) else 1
    return TaskScore(*name, median, lowest, highest, seeds, random_init, trivial, weights)


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


class ProbeScore(NamedTuple):
    """A score of train.probe, in percent."""

    key: str
    """In metrics.jsonl."""
    task: str
    metric: str

    @property
    def trivial_key(self) -> str:
        """The key of the best answer that needs no input."""
        return f"{PROBE_PREFIX}{self.task}_{TRIVIAL}"


def probe_scores(metrics: Mapping[str, Any]) -> Iterator[ProbeScore]:
    """Yield the scores of train.probe among these metrics."""
    for key in metrics:
        task, _, metric = key.removeprefix(PROBE_PREFIX).rpartition("_")
        if key.startswith(PROBE_PREFIX) and metric != TRIVIAL:
            yield ProbeScore(key, task, metric)


def probe_words(metrics: Mapping[str, Any]) -> str:
    """Return the scores of train.probe among these metrics in words, with the answer that needs no input; empty where
    there are none.

    >>> probe_words({"probe/blimp_accuracy": 61.25, "probe/blimp_trivial": 50.0, "loss": 2.0})
    'blimp accuracy 61.2 (trivial 50.0)'
    """
    words = []
    for one in probe_scores(metrics):
        value, trivial = (number(metrics.get(key)) for key in (one.key, one.trivial_key))
        if value is not None:
            text = task_metric(one.metric).text
            words.append(
                f"{one.task} {one.metric} {text(value)}"
                + (f" (trivial {text(trivial)})" if trivial is not None else "")
            )
    return ", ".join(words)
