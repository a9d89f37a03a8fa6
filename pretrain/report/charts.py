"""Draw charts of a run's metrics as SVGs that stretch to any width, with their numbers in a table.

Lines are in an SVG of 1000 x 1000 units that is stretched to the plot; strokes keep their width. Axis labels are HTML
at percentages, so that text keeps its size on a phone. A picture's size on the page is bounded, however long the run.

A `Picture` names the metrics that a chart draws; a `Chart` holds their numbers, as far as the run logged them.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from html import escape

import numpy as np
from numpy.typing import NDArray

from pretrain.report.record import Points, RunRecord, last
from pretrain.run.metrics import HELD_OUT
from pretrain.run.metrics_log import PROBE_PREFIX, TRIVIAL

# Compute text, tick values, thinned points, smoothed lines and axis limits.


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


# Define what a chart draws, and give its numbers as text, as a table, and as data for the page's script.


DOTS = 240
"""Maximum number of points per row of dots, and per line that the script reads values from."""


@dataclass(frozen=True)
class Series:
    """One metric in a chart. Noisy lines get a smooth line in front of the raw values."""

    name: str
    points: Points
    colour: int = 1  # 1 to 5: the palette in page.css; 4 and 5 are dashed as well
    dots: bool = False
    dashed: bool = False
    noisy: bool = False


@dataclass(frozen=True)
class Level:
    """A constant to compare with, drawn across."""

    name: str
    value: float


def description(series: list[Series], levels: list[Level], share: bool) -> str:
    """Describe the first and last value of each line, and the levels."""
    parts = []
    for s in series:
        finite = np.isfinite(s.points.values)
        values, steps = s.points.values[finite], s.points.steps[finite]
        parts.append(
            f"{s.name}: {text(float(values[0]), share)} at step {text(steps[0])}, "
            f"{text(float(values[-1]), share)} at step {text(steps[-1])}"
        )
    parts += [f"{level.name}: {text(level.value, share)}" for level in levels]
    return "; ".join(parts) + "."


def table(series: list[Series], share: bool) -> str:
    """Return the numbers of the picture as a table: up to twelve evenly spaced steps of the sparsest series that has
    that many."""
    by_count = sorted(series, key=lambda s: len(s.points.steps))
    chosen = next((s for s in by_count if len(s.points.steps) >= 6), by_count[-1]).points.steps
    steps = np.unique(chosen[np.linspace(0, len(chosen) - 1, min(12, len(chosen))).round().astype(int)])
    reach = (steps[-1] - steps[0]) / max(1, len(steps) - 1) / 2 if len(steps) > 1 else 0.0
    head = "".join(f'<th scope="col">{escape(s.name)}</th>' for s in series)
    rows = []
    for step in steps:
        cells = "".join(f"<td>{text(_near(s.points, step, reach), share)}</td>" for s in series)
        rows.append(f'<tr><th scope="row">{text(float(step))}</th>{cells}</tr>')
    return (
        f'<details><summary>Numbers</summary><div class="scroll"><table><thead><tr><th scope="col">step</th>'
        f"{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div></details>"
    )


def _near(points: Points, step: float, reach: float) -> float | None:
    """Return the value logged nearest to `step`, None if there is none within `reach`."""
    index = int(np.argmin(np.abs(points.steps - step)))
    return float(points.values[index]) if abs(points.steps[index] - step) <= reach else None


def for_script(series: list[Series], smooth: list[Points], x_range: tuple[float, float], share: bool) -> str:
    """Return what the script needs to read values off the picture: names and points, four digits each."""
    lines = []
    for s, middle in zip(series, smooth, strict=True):
        drawn = middle if middle is not s.points else thin(middle, DOTS)
        finite = np.isfinite(drawn.values)
        lines.append(
            {
                "name": s.name,
                "steps": [int(x) for x in drawn.steps[finite]],
                "values": [float(f"{v:.4g}") for v in drawn.values[finite]],
            }
        )
    return json.dumps({"x": list(x_range), "share": share, "lines": lines}, separators=(",", ":"))


# Draw a chart: its legend, the picture, notes on values that the picture does not show, and the table.


RAW_POINTS = 600
"""Maximum number of points drawn per line."""
MOST_MARKS = 60
"""Maximum number of marks of a kind; more would be unreadable."""
PHASE, RESUMED, SKIPPED = "phase", "resumed", "skipped"


@dataclass(frozen=True)
class Mark:
    """An event at a step: a phase began, the run was resumed, a batch was skipped."""

    step: float
    kind: str
    label: str = ""


@dataclass(frozen=True)
class Chart:
    """The contents of one picture."""

    id: str
    title: str
    about: str  # unit, and which direction is better
    series: list[Series]
    levels: list[Level]
    share: bool = False  # values are shares of one, shown in percent
    whole: bool = False  # the axis covers 0 to 1
    zero: bool = False  # the axis starts at zero
    marks: tuple[Mark, ...] = ()
    wide: bool = False  # twice as wide


def draw(chart: Chart) -> str:
    """Return the chart as an HTML figure; empty where nothing was logged."""
    if not chart.series:
        return ""
    series = [s for s in chart.series if np.isfinite(s.points.values).any()]
    body = _broken(chart.series)
    if series:
        smooth = [running_middle(s.points) if s.noisy else s.points for s in series]
        x_range = _step_range(series)
        values = np.concatenate([s.points.values for s in series])
        values = values[np.isfinite(values)]
        levels = [level.value for level in chart.levels]
        y_range = (0.0, 1.0) if chart.whole else value_range(values, levels, chart.zero)
        body = (
            _legend(chart, series, smooth, _marks_within(chart, x_range))
            + _plot(chart, series, smooth, x_range, y_range)
            + body
            + _outside(chart, values, y_range)
            + table(series, chart.share)
        )
    return (
        f'<figure class="chart{" broad" if chart.wide else ""}" id="{chart.id}">'
        f"<figcaption><h3>{escape(chart.title)}</h3>"
        f"<p>{escape(chart.about)}</p></figcaption>{body}</figure>"
    )


def _step_range(series: list[Series]) -> tuple[float, float]:
    low = min(float(s.points.steps.min()) for s in series)
    high = max(float(s.points.steps.max()) for s in series)
    margin = 0.012 * (high - low) or 1.0  # so that the frame cuts no dot in half
    return low - margin, high + margin


def _plot(
    chart: Chart,
    series: list[Series],
    smooth: list[Points],
    x_range: tuple[float, float],
    y_range: tuple[float, float],
) -> str:
    x_ticks = [t for t in ticks(*x_range, 5) if t == int(t)]
    y_ticks = ticks(*y_range, 4)
    grid = "".join(f"M0 {_y(t, y_range):.1f}H1000" for t in y_ticks)
    marks = "".join(_line(s, middle, x_range, y_range) for s, middle in zip(series, smooth, strict=True))
    levels = "".join(
        f'<path class="level" d="M0 {_y(level.value, y_range):.1f}H1000"/>' for level in chart.levels
    )
    events = _marks_within(chart, x_range)
    upright = "".join(_mark_path(kind, found, x_range) for kind, found in events.items())
    names = "".join(
        f'<span style="left:{_x(mark.step, x_range) / 10:.2f}%">{escape(mark.label)}</span>'
        for mark in events.get(PHASE, [])
        if mark.label
    )
    rows = "".join(
        f'<span style="top:{_y(t, y_range) / 10:.2f}%">{_tick(t, chart.share)}</span>' for t in y_ticks
    )
    columns = "".join(f'<span style="left:{_x(t, x_range) / 10:.2f}%">{text(t)}</span>' for t in x_ticks)
    return (
        f'<div class="plot" tabindex="0" role="group" '
        f'aria-label="{escape(chart.title)}: arrow keys read the values" '
        f'data-plot="{escape(for_script(series, smooth, x_range, chart.share))}">'
        f'<div class="rows" aria-hidden="true">{rows}</div>'
        f'<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" role="img" '
        f'aria-labelledby="{chart.id}-title {chart.id}-desc">'
        f'<title id="{chart.id}-title">{escape(chart.title)} over steps</title>'
        f'<desc id="{chart.id}-desc">{escape(description(series, chart.levels, chart.share))}</desc>'
        f'<path class="grid" d="{grid}"/>{upright}{levels}{marks}</svg>'
        f'<div class="names" aria-hidden="true">{names}</div>'
        f'<div class="columns" aria-hidden="true">{columns}</div><div class="tip" hidden></div></div>'
    )


def _marks_within(chart: Chart, x_range: tuple[float, float]) -> dict[str, list[Mark]]:
    """Return the marks by kind that are within the frame and few enough to be useful."""
    found: dict[str, list[Mark]] = {}
    for mark in chart.marks:
        if mark.kind == PHASE:  # the first begins before its first log line
            mark = replace(mark, step=max(mark.step, x_range[0]))
        if x_range[0] <= mark.step <= x_range[1]:
            found.setdefault(mark.kind, []).append(mark)
    return {kind: marks for kind, marks in found.items() if len(marks) <= MOST_MARKS}


def _mark_path(kind: str, marks: list[Mark], x_range: tuple[float, float]) -> str:
    foot = 955 if kind == SKIPPED else 0
    path = "".join(f"M{_x(mark.step, x_range):.1f} 1000V{foot}" for mark in marks)
    return f'<path class="{kind}" d="{path}"/>'


def _line(s: Series, middle: Points, x_range: tuple[float, float], y_range: tuple[float, float]) -> str:
    kind = f"s{s.colour}" + (" dashed" if s.dashed else "")
    drawn = thin(s.points, DOTS if s.dots else RAW_POINTS)
    path = _path(drawn, x_range, y_range)
    if s.dots:
        dots = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in _places(drawn, x_range, y_range) if y is not None)
        body = f'<path class="s{s.colour} thin" d="{path}"/><path class="s{s.colour} dot" d="{dots}"/>'
    elif middle is not s.points:
        front = _path(middle, x_range, y_range)
        body = f'<path class="s{s.colour} raw" d="{path}"/><path class="{kind}" d="{front}"/>'
    else:
        body = f'<path class="{kind}" d="{path}"/>'
    holes = thin(s.points, RAW_POINTS)
    gaps = "".join(f"M{_x(x, x_range):.1f} 1000V955" for x in holes.steps[~np.isfinite(holes.values)])
    return body + (f'<path class="gap" d="{gaps}"/>' if gaps else "")


def _path(points: Points, x_range: tuple[float, float], y_range: tuple[float, float]) -> str:
    """Return a polyline with a gap at every NaN; a lone point between two becomes a dot."""
    parts, pen_down = [], False
    for x, y in _places(points, x_range, y_range):
        if y is not None:
            parts.append(f"{'L' if pen_down else 'M'}{x:.1f} {y:.1f}" + ("" if pen_down else "h0"))
        pen_down = y is not None
    return "".join(parts)


def _places(
    points: Points, x_range: tuple[float, float], y_range: tuple[float, float]
) -> list[tuple[float, float | None]]:
    return [
        (_x(x, x_range), _y(y, y_range) if math.isfinite(y) else None)
        for x, y in zip(points.steps.tolist(), points.values.tolist(), strict=True)
    ]


def _x(step: float, x_range: tuple[float, float]) -> float:
    return 1000 * (step - x_range[0]) / (x_range[1] - x_range[0])


def _y(value: float, y_range: tuple[float, float]) -> float:
    """Return the y coordinate from the top; values far outside the range are clamped just outside the frame."""
    return min(1500.0, max(-500.0, 1000 * (y_range[1] - value) / (y_range[1] - y_range[0])))


def _tick(value: float, share: bool) -> str:
    if share:
        return f"{100 * value:.3g}%"
    return f"{value:g}" if abs(value) < 1000 else text(value)


def _legend(chart: Chart, series: list[Series], smooth: list[Points], marks: dict[str, list[Mark]]) -> str:
    """Return the legend with last values, so that readers need not look at the axis."""
    items = []
    for s, middle in zip(series, smooth, strict=True):
        kind = f"s{s.colour}" + (" dot" if s.dots else " dashed" if s.dashed else "")
        items.append(_key(kind, "M9 5h0" if s.dots else "M1 5H17", s.name, text(last(middle), chart.share)))
    items += [_key("level", "M1 5H17", level.name, text(level.value, chart.share)) for level in chart.levels]
    items += [
        _key(kind, "M9 0V10", kind, text(len(found)))
        for kind, found in marks.items()
        if kind != PHASE and chart.wide  # one chart per section explains the marks
    ]
    return f'<ul class="legend">{"".join(items)}</ul>'


def _key(kind: str, path: str, name: str, value: str) -> str:
    return (
        f'<li><svg viewBox="0 0 18 10" aria-hidden="true"><path class="{kind}" d="{path}"/></svg>'
        f"{escape(name)} <b>{value}</b></li>"
    )


def _broken(series: list[Series]) -> str:
    """Describe the series that have non-finite values: which, how many, and since when."""
    notes = []
    for s in series:
        steps = s.points.steps[~np.isfinite(s.points.values)]
        if len(steps) == len(s.points.steps):
            notes.append(f"{s.name}: not one of {len(steps):,} values is finite.")
        elif len(steps):
            count = "1 value is" if len(steps) == 1 else f"{len(steps):,} values are"
            notes.append(
                f"{s.name}: {count} not finite, first at step {text(steps[0])}; the line has a gap there."
            )
    return "".join(f'<p class="note">{escape(note)}</p>' for note in notes)


def _outside(chart: Chart, values: NDArray[np.float64], y_range: tuple[float, float]) -> str:
    outside = int(((values < y_range[0]) | (values > y_range[1])).sum())
    if not outside:
        return ""
    extent = f"from {text(float(values.min()), chart.share)} to {text(float(values.max()), chart.share)}"
    count = (
        f"1 of {len(values):,} values lies" if outside == 1 else f"{outside:,} of {len(values):,} values lie"
    )
    return f'<p class="aside">{count} outside the frame; they reach {extent}.</p>'


# Define pictures by the metrics that they draw, and those of train.probe.


LEARNING, OPTIMIZER, SPEED = "Learning", "Optimizer", "Speed"


@dataclass(frozen=True)
class Curve:
    """A metric and how it is drawn; the last pair label and padding are dashed, so that colour is not the only
    difference."""

    name: str
    metric: str
    colour: int = 1
    dots: bool = False

    def series(self, run: RunRecord, noisy: bool) -> list[Series]:
        """Return the logged series of the metric: none, or one line."""
        apart = {HELD_OUT: run.held_out, PROBE_PREFIX: run.probe}
        source = next((found for prefix, found in apart.items() if self.metric.startswith(prefix)), run.train)
        points = source.get(self.metric)
        if points is None:
            return []
        dashed = self.colour == 4
        return [Series(self.name, points, self.colour, self.dots, dashed, noisy and not self.dots)]


@dataclass(frozen=True)
class Picture:
    """A chart to draw if the run logged any of its metrics."""

    section: str
    id: str
    title: str
    about: str
    curves: tuple[Curve, ...]
    levels: Callable[[RunRecord], list[Level]] = lambda run: []
    noisy: bool = True
    share: bool = False
    whole: bool = False
    zero: bool = False
    wide: bool = False


def of_probes(run: RunRecord) -> list[Picture]:
    """Return a chart of each score of train.probe, beside the answer that needs no input."""
    names = [name for name in run.probe if name.startswith(PROBE_PREFIX) and not name.endswith(f"_{TRIVIAL}")]
    pictures = []
    for name in names:
        task, _, metric = name.removeprefix(PROBE_PREFIX).rpartition("_")
        trivial = last(run.probe.get(f"{PROBE_PREFIX}{task}_{TRIVIAL}"))
        levels = [] if trivial is None else [Level("trivial", trivial)]
        pictures.append(
            Picture(LEARNING, f"probe-{task}".replace("_", "-"), f"Probe: {task}, {metric}",
                    "Percent, of the model as it was at each step; the dashed line is an answer that needs no input.",
                    (Curve(task, name, 2, dots=True),), lambda run, levels=levels: levels)  # type: ignore[misc]
        )  # fmt: skip
    return pictures
