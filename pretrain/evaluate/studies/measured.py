"""Keep what was measured of each run of a study, a JSON file each, and say of a run whether it has learnt context.

A run is an arm, a seed and, where a setting is tuned, its value. Its file is written when all of it is done, so that a
study that was interrupted continues with the others.
"""

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from data_pipeline.errors import UserError
from data_pipeline.io.files import write_whole
from pretrain.run.files import table
from pretrain.run.metrics import HELD_OUT, KINDS
from pretrain.run.metrics_log import read_metrics
from pretrain.run.task_scores import OF_A_PAIR

CONTEXT_MARGIN = 0.5
"""Nats below the unigram's loss at which context has begun to be learnt, for `tokens_to_context`."""
TOKENS_TO_CONTEXT, CONTEXT_GAIN = "tokens_to_context", "context_gain"
"""Figures that follow from the others: tokens until the loss is CONTEXT_MARGIN below the unigram's, by a straight line
between evaluations; and how far below it the loss ended, in nats."""


class Cell(NamedTuple):
    """A run of a study."""

    arm: str
    seed: int
    tuned: tuple[tuple[str, Any], ...] = ()
    """Settings that are tuned, with this run's values."""

    @property
    def name(self) -> str:
        """Its name in files and logs."""
        values = "".join(f"-{key.rpartition('.')[2]}{value:g}" for key, value in self.tuned)
        return f"{self.arm}{values}-{self.seed}"


@dataclass(frozen=True)
class Measured:
    """What was measured of one run."""

    arm: str
    seed: int
    tuned: list[list[Any]]
    figures: dict[str, float]
    """By name: those of the last held-out evaluation, and of tasks (`TASK.METRIC`). A run that did not stay finite has
    infinite losses; what was not reached is absent."""
    curve: list[dict[str, float]] = field(default_factory=list)
    """An entry for each evaluation: step, tokens, and the held-out figures."""
    seconds: float = 0.0
    """Of training, in all its attempts, and of scoring what no process before had scored."""
    finite: bool = True
    identity: str = ""
    """Hash of the settings and data that it was measured with."""
    notes: list[str] = field(default_factory=list)
    by_epoch: dict[str, list[float]] = field(default_factory=dict)
    """Figures of tasks after each epoch of fine-tuning."""
    machine: str = ""
    """What it ran on."""
    date: str = ""
    """The day on which it ended, in UTC."""
    trivial: dict[str, float] = field(default_factory=dict)
    """What the best answer that needs no input has in the figures of tasks."""

    @property
    def cell(self) -> Cell:
        """Which run it is."""
        return Cell(self.arm, self.seed, tuple((key, value) for key, value in self.tuned))

    @property
    def has_learnt_context(self) -> bool | None:
        """Whether its last loss of predicted words is below that of word frequencies; None where it has none."""
        loss, unigram = word_losses(self.figures)
        return None if loss is None or unigram is None else loss < unigram


def word_losses(figures: dict[str, Any]) -> tuple[float | None, float | None]:
    """Return the loss of the first kind of word prediction that has one, at [MASK] before others, and the unigram's."""
    for kind in KINDS.values():
        loss, unigram = (figures.get(f"{HELD_OUT}{kind.name}_{what}") for what in ("loss", "unigram_loss"))
        if kind.words and loss is not None:
            return loss, unigram
    return None, None


def measure_run(
    run: Path, tokens_by_step: Callable[[float], float], finite: bool
) -> tuple[list[dict[str, float]], dict[str, float]]:
    """Return the curve and the last figures of a trained run folder, those that follow from them included."""
    lines = [line for line in read_metrics(run) if line.get("kind") == "eval"]
    curve = [{"step": n["step"], "tokens": tokens_by_step(n["step"]), **_figures(n)} for n in lines]
    figures = (
        {name: value for name, value in curve[-1].items() if name not in ("step", "tokens")} if curve else {}
    )
    if not finite:
        figures |= {name: math.inf for name in figures if name.endswith("_loss") and "unigram" not in name}
    loss, unigram = word_losses(figures)
    if loss is not None and unigram is not None and math.isfinite(loss):
        figures[CONTEXT_GAIN] = unigram - loss
    if (reached := tokens_to_context(curve)) is not None:
        figures[TOKENS_TO_CONTEXT] = reached
    return curve, figures


def _figures(line: dict[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in line.items()
        if name.startswith(HELD_OUT) and isinstance(value, int | float)
    }


def tokens_to_context(curve: list[dict[str, float]]) -> float | None:
    """Return after how many tokens the loss was first CONTEXT_MARGIN below the unigram's; None if never."""
    before: tuple[float, float] | None = None
    for point in curve:
        loss, unigram = word_losses(point)
        if loss is None or unigram is None:
            continue
        gain, tokens = unigram - loss, point["tokens"]
        if gain >= CONTEXT_MARGIN:
            if before is None:
                return tokens
            share = (CONTEXT_MARGIN - before[1]) / (gain - before[1])
            return before[0] + share * (tokens - before[0])
        before = tokens, gain
    return None


def write_measured(folder: Path, found: Measured) -> None:
    """Write what was measured of a run, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / f"{found.cell.name}.json", json.dumps(asdict(found), indent=1).encode())


def read_measured(folder: Path, cell: Cell) -> Measured | None:
    """Return what was measured of a run; None if it has not been. Raises UserError for another file of that name."""
    path = folder / f"{cell.name}.json"
    if not path.is_file():
        return None
    try:
        return Measured(**table(path))
    except TypeError:
        raise UserError(
            "is not what a study wrote", where=path, remedy="remove it: its run is measured again"
        ) from None


def best_values(found: Iterable[Measured], figure: str) -> dict[str, tuple[tuple[str, Any], ...]]:
    """Return each arm's best values of what is tuned, by the figure of its first seed."""
    best: dict[str, Measured] = {}
    for one in sorted(found, key=lambda one: one.seed):
        known = best.get(one.arm)
        if known is None or (one.seed == known.seed and better(figure, one, known)):
            best[one.arm] = one
    return {arm: one.cell.tuned for arm, one in best.items()}


def better(figure: str, one: Measured, other: Measured) -> bool:
    """Return whether a run is better than another in a figure; one that lacks it is the worst."""
    sign = 1 if lower_is_better(figure) else -1
    values = (sign * run.figures[figure] if figure in run.figures else math.inf for run in (one, other))
    return next(values) < next(values)


def has_direction(figure: str) -> bool:
    """Return whether one value of a figure can be better than another; some tell what a model does, no more."""
    return not figure.rpartition(".")[2].startswith(("sep_", "blocked_", *OF_A_PAIR))


def lower_is_better(figure: str) -> bool:
    """Return whether lower values of a figure are better: losses, bits, perplexities, tokens."""
    name = figure.rpartition(".")[2]
    return "loss" in name or name.startswith(("bits", "perplexity", "tokens"))
