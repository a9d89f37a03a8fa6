"""Compute text, axis limits, tick values, thinned points and smoothed lines for charts."""

import math

import numpy as np
from numpy.typing import NDArray

from pretrain.report.html.record import Points

SMOOTH_POINTS = 160
"""Maximum number of points of a smooth line."""
SMOOTH_FROM = 40
"""A line with fewer points is drawn as it is."""


def text(value: float | None, share: bool = False) -> str:
    """Format a number for people: four digits, separated thousands, powers of ten for very small numbers."""
    if value is None or not math.isfinite(value):
        return "—"
    if share:
        return f"{100 * value:.1f}\N{NO-BREAK SPACE}%"
    size = abs(value)
    if size and size < 1e-3:
        return f"{value:.3g}"
    if size >= 1e9:
        return f"{value:.3g}"
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value == int(value) else f"{value:#.4g}"


def ticks(low: float, high: float, count: int) -> list[float]:
    """Return about `count` round values from `low` to `high`: steps of 1, 2 or 5 times a power of ten."""
    if not high > low:
        return [low]
    rough = (high - low) / max(1, count)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((m * power for m in (1, 2, 5) if m * power >= rough), 10 * power)
    first, final = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 15 - math.floor(math.log10(step))) for i in range(first, final + 1)]


def thin(points: Points, limit: int) -> Points:
    """Return about `limit` points at most that draw the same picture: minimum and maximum of every bin of steps, and a
    NaN for every bin that has one, so that gaps stay gaps."""
    if len(points.values) <= limit:
        return points
    keep: list[NDArray[np.intp]] = []
    for stretch in np.array_split(np.arange(len(points.values)), max(1, limit // 3)):
        values = points.values[stretch]
        finite = np.isfinite(values)
        chosen = [] if finite.all() else [stretch[np.argmin(finite)]]
        if finite.any():
            chosen += [stretch[np.nanargmin(values)], stretch[np.nanargmax(values)]]
        keep.append(np.unique(chosen))
    index = np.concatenate(keep)
    return Points(points.steps[index], points.values[index])


def running_middle(points: Points) -> Points:
    """Return the mean of the middle half of the neighbouring values, at up to SMOOTH_POINTS places: smooth and robust
    to outliers. A NaN separates two places if a value between them is not finite."""
    count = len(points.values)
    if count < SMOOTH_FROM:
        return points
    half = max(4, count // 50)
    finite = np.isfinite(points.values)
    holes = np.concatenate([[0], np.cumsum(~finite)])
    steps: list[float] = []
    values: list[float] = []
    before = 0
    for place in np.linspace(0, count - 1, min(count, SMOOTH_POINTS)).round().astype(int).tolist():
        window = slice(max(0, place - half), place + half + 1)
        near = points.values[window][finite[window]]
        if holes[place + 1] > holes[before] or not len(near):
            steps.append(float(points.steps[place]))
            values.append(math.nan)
        if finite[place]:
            steps.append(float(points.steps[place]))
            quarter = len(near) // 4
            values.append(float(np.sort(near)[quarter : len(near) - quarter].mean()))
        before = place + 1
    return Points(np.array(steps), np.array(values))


def value_range(values: NDArray[np.float64], levels: list[float], zero: bool) -> tuple[float, float]:
    """Return the minimum and maximum of an axis that shows finite `values` and `levels`, from zero if asked for and
    nothing is negative. A few outliers are left outside, so that they do not flatten all the others."""
    low, high = (float(q) for q in np.quantile(values, [0.01, 0.99]))
    room = max(high - low, 0.02 * abs(high), 1e-12)
    low, high = max(float(values.min()), low - room), min(float(values.max()), high + room)
    low, high = min([low, *levels]), max([high, *levels])
    margin = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
    return 0.0 if zero and low >= 0 else low - margin, high + margin


def middle(points: Points | None) -> float | None:
    """Return the median of the finite values."""
    if points is None:
        return None
    finite = points.values[np.isfinite(points.values)]
    return float(np.median(finite)) if len(finite) else None
