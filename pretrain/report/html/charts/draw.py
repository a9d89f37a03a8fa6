"""Draw charts as SVGs that stretch to any width, with their numbers in a table.

Lines are in an SVG of 1000 x 1000 units that is stretched to the plot; strokes keep their width. Axis labels are HTML
at percentages, so that text keeps its size on a phone. A picture's size on the page is bounded, however long the run.
"""

import math
from dataclasses import dataclass, replace
from html import escape

import numpy as np
from numpy.typing import NDArray

from pretrain.report.html.charts.figures import DOTS, Level, Series, description, for_script, table
from pretrain.report.html.charts.scales import running_middle, text, thin, ticks, value_range
from pretrain.report.html.record import Points, last

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
