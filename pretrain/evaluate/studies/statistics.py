"""Compare the figures of two arms: differences with their intervals, tests, and how many seeds would tell: the studies'
only import of scipy.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from data_pipeline.errors import UserError

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
    tested = [name for name, found in raw.items() if len(found) > 1]
    corrected = dict(zip(tested, holm([_p(raw[name]) for name in tested]), strict=True))
    alpha = ALPHA / max(1, len(tested))
    return {name: _comparison(found, corrected.get(name, math.nan), alpha) for name, found in raw.items()}


def _comparison(differences: np.ndarray, p: float, alpha: float) -> Comparison:
    count = len(differences)
    mean = float(differences.mean()) if count else math.nan
    if count < 2:
        return Comparison(count, mean, math.nan, math.nan, p, 0)
    error = float(differences.std(ddof=1)) / math.sqrt(count) if _spreads(differences) else 0.0
    half = float(scipy.stats.t.ppf(0.975, count - 1)) * error
    needed = 0 if p < ALPHA or not error else seeds_needed(mean, error * math.sqrt(count), alpha)
    return Comparison(count, mean, mean - half, mean + half, p, needed)


def _p(differences: np.ndarray) -> float:
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
    found = scipy.stats.nct.sf(edge, seeds - 1, effect)
    return float(np.nan_to_num(found, nan=1.0))  # beyond what scipy computes, it is certain


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
