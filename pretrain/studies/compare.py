"""Compare the arms of a study with its reference, figure by figure, and sums of arms with 0.

A row for each arm and figure has its seeds and spread, the difference from the reference with its interval, and what
that allows to say. Differences are tested over pairs of runs of the same seed.

Of the modules of studies this one alone imports scipy, which is an extra.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from data_pipeline.errors import UserError
from pretrain.run.task_scores import study_metric
from pretrain.studies.design import Design
from pretrain.studies.measured import TOKENS_TO_CONTEXT, Cell, Measured, best_values, word_losses

# Test differences: their intervals, p-values, and how many seeds would tell them.


try:
    import scipy.stats
except ImportError:  # an extra
    scipy = None

ALPHA, POWER = 0.05, 0.8
"""A difference is told where p, after correction, is below ALPHA; seeds are counted that find it with this chance."""
MAX_SEEDS = 1000
"""Beyond so many seeds, how many it would take is not said."""


def require() -> None:
    """Raise UserError where scipy is not installed."""
    if scipy is None:
        raise UserError("scipy is not installed", where="study", remedy='pip install "maskmill[evaluate]"')


class Comparison(NamedTuple):
    """An arm against the reference, in one figure."""

    seeds: int
    """Pairs of runs with the same seed."""
    difference: float
    """Mean of arm minus reference; nan without a pair."""
    low: float
    high: float
    """95 % interval of it, by Student's t; nan for a single pair."""
    p: float
    """Two-sided, of a paired t-test, corrected over the comparisons of the figure (Holm 1979); nan if untested."""
    needed: int
    """Seeds that would tell a difference of this size; 0: it is told, or cannot be estimated; -1: beyond MAX_SEEDS."""

    @property
    def told(self) -> bool:
        """Whether the difference is told from none."""
        return self.p < ALPHA


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and sample standard deviation (nan of a single value, and beside an infinite one)."""
    array = np.array(values, float)
    if not np.isfinite(array).all():
        return math.inf, math.nan
    return float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else math.nan


def compare(reference: Mapping[int, float], arms: Mapping[str, Mapping[int, float]]) -> dict[str, Comparison]:
    """Compare each arm (seed -> figure) with the reference, run by run of the same seed: they share examples, masks or
    weights, so that what a seed does to both cancels."""
    raw = {}
    for name, values in arms.items():
        shared = sorted(reference.keys() & values.keys())
        raw[name] = [values[seed] - reference[seed] for seed in shared]
    return compare_with_none(raw)


def compare_with_none(differences: Mapping[str, Sequence[float]]) -> dict[str, Comparison]:
    """Compare each name's differences, one for each seed, with 0; p is corrected over the names."""
    require()
    raw = {name: np.array(values, float) for name, values in differences.items()}
    tested = [name for name, of in raw.items() if len(of) > 1]
    corrected = dict(zip(tested, holm([_p_of(raw[name]) for name in tested]), strict=True))
    alpha = ALPHA / max(1, len(tested))
    return {name: _comparison(of, corrected.get(name, math.nan), alpha) for name, of in raw.items()}


def _comparison(differences: np.ndarray, p: float, alpha: float) -> Comparison:
    count = len(differences)
    mean = float(differences.mean()) if count else math.nan
    if count < 2:
        return Comparison(count, mean, math.nan, math.nan, p, 0)
    error = float(differences.std(ddof=1)) / math.sqrt(count) if _spreads(differences) else 0.0
    half = float(scipy.stats.t.ppf(0.975, count - 1)) * error
    needed = 0 if p < ALPHA or not error else seeds_needed(mean, error * math.sqrt(count), alpha)
    return Comparison(count, mean, mean - half, mean + half, p, needed)


def _p_of(differences: np.ndarray) -> float:
    """Return p of a paired t-test; 1 without any spread. Scores of few examples are as far apart in every seed by
    chance, two examples of 400, say, and seeds then tell nothing of how far they would spread."""
    return float(scipy.stats.ttest_1samp(differences, 0.0).pvalue) if _spreads(differences) else 1.0


def _spreads(differences: np.ndarray) -> bool:
    """Return whether they differ by more than rounding does: percentages of equal counts differ in their last bits."""
    return bool(np.ptp(differences) > 1e-9 * np.abs(differences).max())


def holm(values: Sequence[float]) -> list[float]:
    """Correct p-values for their number, step by step from the smallest (Holm 1979)."""
    corrected, highest = [0.0] * len(values), 0.0
    for rank, place in enumerate(np.argsort(values, kind="stable").tolist()):
        highest = max(highest, min(1.0, (len(values) - rank) * values[place]))
        corrected[place] = highest
    return corrected


def power(difference: float, deviation: float, seeds: int, alpha: float = ALPHA) -> float:
    """Compute the chance that a paired t-test finds a mean `difference` of pairs that deviate by `deviation`."""
    effect = abs(difference) / deviation * math.sqrt(seeds)
    edge = scipy.stats.t.ppf(1 - alpha / 2, seeds - 1)
    chance = scipy.stats.nct.sf(edge, seeds - 1, effect)
    return float(np.nan_to_num(chance, nan=1.0))  # beyond what scipy computes, it is certain


def seeds_needed(difference: float, deviation: float, alpha: float = ALPHA) -> int:
    """Return how many pairs find a difference as large as the one seen with a chance of POWER; -1 beyond MAX_SEEDS."""
    require()
    if not difference or power(difference, deviation, MAX_SEEDS, alpha) < POWER:
        return -1
    low, high = 1, MAX_SEEDS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power(difference, deviation, middle, alpha) >= POWER else (middle, high)
    return high


# Make the rows of a study, say what each allows to say, and write them as cells of a table.


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


def rows_of(design: Design, measured: Mapping[Cell, Measured]) -> list[Row]:
    """Return the rows of all figures, arm by arm at its best tuned values."""
    runs = runs_of(design, measured)
    return [row for figure in figures_of(design, measured) for row in _of_figure(design, figure, runs)]


def runs_of(design: Design, measured: Mapping[Cell, Measured]) -> dict[str, dict[int, Measured]]:
    """Return arm -> seed -> what was measured of it at the arm's best tuned values."""
    tuned = best_values(measured.values(), design.figure)
    return {
        arm: {
            one.seed: one for one in measured.values() if one.arm == arm and one.cell.tuned == tuned.get(arm)
        }
        for arm in design.arms
    }


def figures_of(design: Design, measured: Mapping[Cell, Measured]) -> list[str]:
    """Return the figures to show: the design's, then those of its tasks, that some run has."""
    there = {name for one in measured.values() for name in one.figures}
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
        without = {
            seed for seeds in trained for seed, one in seeds.items() if one.has_learnt_context is False
        }
        stuck[arm] = sorted(without) if design.needs_context else []
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


def verdict(compared: Comparison, figure: str) -> str:
    """Say in words what a comparison allows to say."""
    if compared.seeds < 2:
        return "one seed: cannot tell"
    if compared.told:
        is_lower, lower_is_better = compared.difference < 0, study_metric(figure).lower_is_better
        if lower_is_better is None:
            side = "lower" if is_lower else "higher"
        else:
            side = "better" if is_lower == lower_is_better else "worse"
        return f"{side} (p {_p(compared.p)})"
    if compared.low == compared.high:
        how = "as far apart" if compared.difference else "equal"
        return f"{how} in every seed"
    more = (
        f"would take about {compared.needed:,} seeds"
        if compared.needed > 0
        else "would take more than 1,000 seeds"
    )
    return f"cannot tell (p {_p(compared.p)}): a difference of this size {more}"


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


def cells_of_trivial(figure: str, measured: Mapping[Cell, Measured]) -> list[str]:
    """Return a last line for a figure's table, of the best answer that needs no input; nothing where runs have none, or
    not the same."""
    values = {one.trivial[figure] for one in measured.values() if figure in one.trivial}
    if len(values) != 1:
        return []
    return [TRIVIAL, "", shown(figure, values.pop()), "", "", "", ""]


def difference_of(compared: Comparison | None, figure: str) -> str:
    """Write a difference and its interval; nothing where there is none."""
    if compared is None or not compared.seeds:
        return ""
    difference = shown(figure, compared.difference, sign=True)
    if not math.isfinite(compared.low):
        return difference
    low, high = (shown(figure, end, sign=True) for end in (compared.low, compared.high))
    return f"{difference} ({low} to {high})"


def shown(figure: str, value: float, sign: bool = False) -> str:
    """Write a figure's value; nothing for one that is unknown."""
    if math.isnan(value):
        return ""
    if not math.isfinite(value):
        return "inf"
    return f"{'+' if sign and value >= 0 else ''}{study_metric(figure).text(value)}"


def unigram_of(measured: Mapping[Cell, Measured]) -> float | None:
    """Return the unigram's loss if it is the same in all runs, to the hundredth of a nat; else None."""
    levels = {round(u, 2) for one in measured.values() if (u := word_losses(one.figures)[1]) is not None}
    return levels.pop() if len(levels) == 1 else None


# Compare sums of arms with 0: the main effects and interactions of a study whose arms are the cells of a table.


@dataclass(frozen=True)
class Contrast:
    """A sum of arms in one figure."""

    name: str
    figure: str
    comparison: Comparison
    """Of the sum with 0, over seeds: the runs of a seed are summed."""

    @property
    def as_values(self) -> dict[str, Any]:
        """Return it for a JSON file."""
        return {"name": self.name, "figure": self.figure, **self.comparison._asdict()}

    @property
    def cells(self) -> list[str]:
        """What a table shows of it: name, seeds, difference with its interval, and what it says."""
        difference = difference_of(self.comparison, self.figure)
        return [self.name, str(self.comparison.seeds), difference, verdict(self.comparison, self.figure)]


def contrasts_of(design: Design, rows: Sequence[Row]) -> list[Contrast]:
    """Return the study's contrasts in each figure that their arms have in all seeds, none of them without context."""
    contrasts: list[Contrast] = []
    for figure in dict.fromkeys(row.figure for row in rows):
        values = {row.arm: row.values for row in rows if row.figure == figure and _is_whole(row)}
        sums = {
            name: _sums(weights, values, design.seeds)
            for name, weights in design.contrasts.items()
            if weights.keys() <= values.keys()
        }
        contrasts += [Contrast(name, figure, one) for name, one in compare_with_none(sums).items()]
    return contrasts


def _is_whole(row: Row) -> bool:
    return not row.missing and not row.no_context and all(map(math.isfinite, row.values.values()))


def _sums(
    weights: Mapping[str, float], values: Mapping[str, Mapping[int, float]], seeds: Sequence[int]
) -> list[float]:
    return [sum(weight * values[arm][seed] for arm, weight in weights.items()) for seed in seeds]
