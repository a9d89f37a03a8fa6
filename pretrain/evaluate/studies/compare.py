"""Compare the arms of a study: a row for each arm and figure, with seeds and spread, the difference from the reference,
and what it allows to say.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pretrain.evaluate.studies.design import Design
from pretrain.evaluate.studies.measured import (
    CONTEXT_GAIN,
    TOKENS_TO_CONTEXT,
    Cell,
    Measured,
    best_values,
    has_direction,
    lower_is_better,
    word_losses,
)
from pretrain.evaluate.studies.statistics import Comparison, compare, spread
from pretrain.run.metrics import said
from pretrain.run.task_scores import OF_A_PAIR

NO_CONTEXT = "has learnt no context"
REFERENCE = "reference"
TRIVIAL = "an answer without input"


@dataclass(frozen=True)
class Row:
    """An arm in one figure."""

    arm: str
    figure: str
    values: dict[int, float]
    """Seed -> value."""
    missing: list[int]
    """Seeds that have not been measured, or that did not reach what the figure is of."""
    no_context: list[int]
    """Seeds in which a model of the arm predicts no better than word frequencies."""
    comparison: Comparison | None
    reading: str

    @property
    def as_values(self) -> dict[str, Any]:
        """Return it for a JSON file."""
        compared = self.comparison._asdict() if self.comparison else None
        return {**asdict(self), "comparison": compared}


def rows_of(design: Design, found: Mapping[Cell, Measured]) -> list[Row]:
    """Return the rows of all figures, arm by arm at its best tuned values."""
    runs = runs_of(design, found)
    return [row for figure in figures_of(design, found) for row in _of_figure(design, figure, runs)]


def runs_of(design: Design, found: Mapping[Cell, Measured]) -> dict[str, dict[int, Measured]]:
    """Return arm -> seed -> what was measured of it at the arm's best tuned values."""
    tuned = best_values(found.values(), design.figure)
    return {
        arm: {one.seed: one for one in found.values() if one.arm == arm and one.cell.tuned == tuned.get(arm)}
        for arm in design.arms
    }


def figures_of(design: Design, found: Mapping[Cell, Measured]) -> list[str]:
    """Return the figures to show: the design's, then those of its tasks, that some run has."""
    there = {name for one in found.values() for name in one.figures}
    tasks = sorted(name for name in there if "." in name and name not in design.figures)
    return [name for name in (*design.figures, *tasks) if name in there]


def _of_figure(design: Design, figure: str, runs: Mapping[str, Mapping[int, Measured]]) -> list[Row]:
    values = {
        arm: {seed: one.figures[figure] for seed, one in seeds.items() if figure in one.figures}
        for arm, seeds in runs.items()
    }
    stuck = {}
    for arm in runs:
        trained = [runs.get(source, {}) for source in design.arms[arm].sources or [arm]]
        found = {seed for seeds in trained for seed, one in seeds.items() if one.has_learnt_context is False}
        stuck[arm] = sorted(found) if design.needs_context else []
    able = {
        arm: values[arm]
        for arm in design.arms
        if not stuck[arm]
        and len(values[arm]) == len(runs[arm])
        and all(map(math.isfinite, values[arm].values()))
    }
    others = {arm: able[arm] for arm in design.others if arm in able}
    compared = compare(able[design.reference], others) if design.reference in able else {}
    return [
        Row(
            arm,
            figure,
            values[arm],
            [seed for seed in design.seeds if seed not in values[arm]],
            stuck[arm],
            compared.get(arm),
            _reading(design, arm, figure, runs[arm], values[arm], stuck[arm], compared.get(arm)),
        )
        for arm in design.arms
    ]


def _reading(
    design: Design,
    arm: str,
    figure: str,
    runs: Mapping[int, Measured],
    values: Mapping[int, float],
    stuck: Sequence[int],
    compared: Comparison | None,
) -> str:
    if stuck:
        return f"{NO_CONTEXT} ({len(stuck)} of {len(design.seeds)} seeds): not compared"
    if not values:
        none = "has none" if len(runs) == len(design.seeds) else "not measured"
        return "not reached" if figure == TOKENS_TO_CONTEXT else none
    if arm == design.reference:
        return REFERENCE
    if compared is None or not compared.seeds:
        return "not compared"
    return verdict(compared, figure)


def verdict(found: Comparison, figure: str) -> str:
    """Say in words what a comparison allows to say."""
    if found.seeds < 2:
        return "one seed: cannot tell"
    if found.told:
        is_lower = found.difference < 0
        said = "lower" if is_lower else "higher"
        if has_direction(figure):
            said = "better" if is_lower == lower_is_better(figure) else "worse"
        return f"{said} (p {_p(found.p)})"
    if found.low == found.high:
        how = "as far apart" if found.difference else "equal"
        return f"{how} in every seed"
    more = (
        f"would take about {found.needed:,} seeds" if found.needed > 0 else "would take more than 1,000 seeds"
    )
    return f"cannot tell (p {_p(found.p)}): a difference of this size {more}"


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.2g}"


def cells_of_row(design: Design, row: Row) -> list[str]:
    """Return what a table shows of a row: arm, seeds, mean and deviation, range, difference and its interval, what it
    says, and the published figure."""
    finite = list(row.values.values())
    mean, deviation = spread(finite) if finite else (math.nan, math.nan)
    around = f" ± {shown(row.figure, deviation)}" if math.isfinite(deviation) else ""
    ends = f"{shown(row.figure, min(finite))} to {shown(row.figure, max(finite))}" if len(finite) > 1 else ""
    seeds = f"{len(finite)}" if not row.missing else f"{len(finite)} of {len(design.seeds)}"
    published = design.arms[row.arm].published.get(row.figure)
    return [
        design.label(row.arm),
        seeds,
        f"{shown(row.figure, mean)}{around}" if finite else "",
        ends,
        difference_of(row.comparison, row.figure),
        row.reading,
        "" if published is None else f"{published:g}",
    ]


def cells_of_trivial(figure: str, found: Mapping[Cell, Measured]) -> list[str]:
    """Return a last line for a figure's table, of the best answer that needs no input; nothing where runs have none, or
    not the same."""
    values = {one.trivial[figure] for one in found.values() if figure in one.trivial}
    if len(values) != 1:
        return []
    return [TRIVIAL, "", shown(figure, values.pop()), "", "", "", ""]


def difference_of(found: Comparison | None, figure: str) -> str:
    """Write a difference and its interval; nothing where there is none."""
    if found is None or not found.seeds:
        return ""
    difference = shown(figure, found.difference, sign=True)
    if not math.isfinite(found.low):
        return difference
    low, high = (shown(figure, end, sign=True) for end in (found.low, found.high))
    return f"{difference} ({low} to {high})"


def shown(figure: str, value: float, sign: bool = False) -> str:
    """Write a figure's value: tokens as whole numbers, shares and scores in percent, losses in nats."""
    plus = "+" if sign else ""
    if math.isnan(value):
        return ""
    if not math.isfinite(value):
        return "inf"
    if figure.startswith("tokens"):
        return f"{value:{plus},.0f}"
    if "accuracy" in figure and "." not in figure:
        return f"{100 * value:{plus}.1f} %"
    nats = "loss" in figure or figure == CONTEXT_GAIN or figure.rpartition(".")[2].startswith(OF_A_PAIR)
    return f"{value:{plus}.3f}" if nats else f"{value:{plus}.2f}"


def named(figure: str) -> str:
    """Return what a figure is called in titles."""
    if figure == TOKENS_TO_CONTEXT:
        return "tokens until the loss is half a nat below the unigram's"
    if figure == CONTEXT_GAIN:
        return "nats below the unigram at the end"
    if figure.startswith("held_out_"):
        return f"held-out {said(figure)}"
    return figure.replace(".", ", ").replace("_", " ")


def unigram_of(found: Mapping[Cell, Measured]) -> float | None:
    """Return the unigram's loss if it is the same in all runs, to the hundredth of a nat; else None."""
    levels = {round(u, 2) for one in found.values() if (u := word_losses(one.figures)[1]) is not None}
    return levels.pop() if len(levels) == 1 else None
