"""Draw charts as SVG, with the same numbers, scales and ticks: figures of report.html, and pictures of studies.

A figure of the page stretches to any width: its lines are in units of 1000 x 1000, strokes keep their width, and axis
labels are HTML at percentages, so that text keeps its size on a phone. Its numbers are in a table below it. A picture
stands alone, as an image in a page of Markdown: its text is part of it, readable on white and on black.
"""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape

import numpy as np
from numpy.typing import NDArray

from pretrain.report.record import Points, last
from pretrain.run.metrics import Chart, percent

# Format numbers and make tables and figures of HTML.


def text(value: float | None, in_percent: bool = False) -> str:
    """Format a number for people: four digits, separated thousands, powers of ten for very small numbers."""
    if value is None or not math.isfinite(value):
        return "—"
    if in_percent:
        return percent(value)
    size = abs(value)
    if (size and size < 1e-3) or size >= 1e9:
        return f"{value:.3g}"
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value == int(value) else f"{value:#.4g}"


def table(head: Iterable[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """Return a table of HTML, the first cell of each row its name. `head`: plain text, empty for none; `rows`: HTML."""
    columns = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(
        f'<tr><th scope="row">{name}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
        for name, *cells in rows
    )
    start = f'<table class="{kind}">' if kind else "<table>"
    top = f"<thead><tr>{columns}</tr></thead>" if columns else ""
    return f'<div class="scroll">{start}{top}<tbody>{body}</tbody></table></div>'


def numbers(head: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """Return the numbers of a picture, to be unfolded."""
    return f"<details><summary>Numbers</summary>{table(head, rows)}</details>"


def figure(id_: str, title: str, about: str, body: str, wide: bool = False) -> str:
    """Return a figure of the page; `body`: HTML."""
    return (
        f'<figure class="chart{" broad" if wide else ""}" id="{id_}"><figcaption><h3>{escape(title)}</h3>'
        f"<p>{escape(about)}</p></figcaption>{body}</figure>"
    )


def drawing(id_: str, title: str, description: str, shapes: str, kind: str = "", height: int = 1000) -> str:
    """Return a picture that stretches to its place in the page, with its title and what it shows in words."""
    style = f' class="{kind}"' if kind else ""
    return (
        f'<svg{style} viewBox="0 0 1000 {height}" preserveAspectRatio="none" role="img" '
        f'aria-labelledby="{id_}-title {id_}-desc"><title id="{id_}-title">{escape(title)}</title>'
        f'<desc id="{id_}-desc">{escape(description)}</desc>{shapes}</svg>'
    )


def labels(side: str, places: Iterable[tuple[float, str]], kind: str) -> str:
    """Return labels of an axis, or names in a plot: at these shares of its height (`top`) or width (`left`)."""
    spans = "".join(f'<span style="{side}:{100 * at:.2f}%">{escape(label)}</span>' for at, label in places)
    return f'<div class="{kind}" aria-hidden="true">{spans}</div>'


# Scale an axis, thin and smooth what is drawn.


SMOOTH_POINTS = 160
"""Maximum number of points of a smooth line."""
SMOOTH_FROM = 40
"""A line with fewer points is drawn as it is."""


@dataclass(frozen=True)
class Scale:
    """An axis: maps its lowest value to 0 and its highest to 1."""

    low: float
    high: float
    log: bool = False

    def __call__(self, value: float) -> float:
        if self.log:
            value = math.log(max(value, 1e-300))
            return (value - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return (value - self.low) / (self.high - self.low)

    def ticks(self, count: int) -> list[float]:
        """Return about `count` round values; of a logarithmic axis powers of ten, and 2 and 5 times these if few."""
        if not self.log:
            return ticks(self.low, self.high, count)
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for factors in ((1,), (1, 2, 5)):
            values = [m * 10.0**power for power in powers for m in factors]
            values = [value for value in values if self.low <= value <= self.high]
            if len(values) >= min(3, count):
                break
        return values


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
    for index in np.linspace(0, count - 1, min(count, SMOOTH_POINTS)).round().astype(int).tolist():
        window = slice(max(0, index - half), index + half + 1)
        near = points.values[window][finite[window]]
        if holes[index + 1] > holes[before] or not len(near):
            steps.append(float(points.steps[index]))
            values.append(math.nan)
        if finite[index]:
            steps.append(float(points.steps[index]))
            quarter = len(near) // 4
            values.append(float(np.sort(near)[quarter : len(near) - quarter].mean()))
        before = index + 1
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


# Draw the figures of the page.


RAW_POINTS, DOTS = 600, 240
"""Maximum numbers of points drawn per line, and per row of dots or line that the script reads values from."""
MOST_MARKS = 60
"""Maximum number of marks of a kind; more would be unreadable."""
PHASE, RESUMED, SKIPPED = "phase", "resumed", "skipped"


@dataclass(frozen=True)
class Series:
    """One metric in a chart. Noisy lines get a smooth line in front of the raw values."""

    name: str
    points: Points
    colour: int = 1
    """1 to 5: the palette in page.css."""
    dots: bool = False
    dashed: bool = False
    noisy: bool = False

    @cached_property
    def smooth(self) -> Points:
        """The line in front: the points themselves if there is none."""
        return running_middle(self.points) if self.noisy else self.points


@dataclass(frozen=True)
class Level:
    """A constant to compare with, drawn across."""

    name: str
    value: float


@dataclass(frozen=True)
class Mark:
    """An event at a step: a phase began, the run was resumed, a batch was skipped."""

    step: float
    kind: str
    label: str = ""


def draw(
    chart: Chart, every: Sequence[Series], levels: Sequence[Level] = (), marks: Sequence[Mark] = ()
) -> str:
    """Return the chart of these series as an HTML figure: its legend, the picture, notes on values that the picture
    does not show, and the table; empty where nothing was logged."""
    if not every:
        return ""
    series = [s for s in every if np.isfinite(s.points.values).any()]
    body = _broken(every)
    if series:
        values = np.concatenate([s.points.values for s in series])
        values = values[np.isfinite(values)]
        x, y = _step_scale(series), _value_scale(chart, values, [level.value for level in levels])
        shown = _marks_within(marks, x)
        body = (
            _legend(chart, series, levels, shown)
            + _plot(chart, series, levels, shown, x, y)
            + body
            + _outside(chart, values, y)
            + _table(series, chart.percent)
        )
    return figure(chart.id, chart.title, chart.about, body, chart.wide)


def _step_scale(series: Sequence[Series]) -> Scale:
    low = min(float(s.points.steps.min()) for s in series)
    high = max(float(s.points.steps.max()) for s in series)
    margin = 0.012 * (high - low) or 1.0  # so that the frame cuts no dot in half
    return Scale(low - margin, high + margin)


def _value_scale(chart: Chart, values: NDArray[np.float64], levels: list[float]) -> Scale:
    if chart.full:
        return Scale(0.0, 1.0)
    if chart.log and min([float(values.min()), *levels]) > 0:
        low, high = value_range(np.log(values), [math.log(level) for level in levels], zero=False)
        return Scale(math.exp(low), math.exp(min(high, 700.0)), log=True)
    return Scale(*value_range(values, levels, chart.zero))


def _plot(
    chart: Chart,
    series: list[Series],
    levels: Sequence[Level],
    marks: dict[str, list[Mark]],
    x: Scale,
    y: Scale,
) -> str:
    rows, columns = y.ticks(4), [step for step in x.ticks(5) if step == int(step)]
    grid = "".join(f"M0 {_down(y, value):.1f}H1000" for value in rows)
    shapes = f'<path class="grid" d="{grid}"/>'
    for kind, of_kind in marks.items():
        foot = 955 if kind == SKIPPED else 0
        path = "".join(f"M{1000 * x(mark.step):.1f} 1000V{foot}" for mark in of_kind)
        shapes += f'<path class="{kind}" d="{path}"/>'
    shapes += "".join(f'<path class="level" d="M0 {_down(y, level.value):.1f}H1000"/>' for level in levels)
    shapes += "".join(_line(s, x, y) for s in series)
    names = [(x(mark.step), mark.label) for mark in marks.get(PHASE, []) if mark.label]
    return (
        f'<div class="plot" tabindex="0" role="group" '
        f'aria-label="{escape(chart.title)}: arrow keys read the values" '
        f'data-plot="{escape(for_script(series, x, chart.percent))}">'
        + labels("top", ((_down(y, value) / 1000, _tick(value, chart.percent)) for value in rows), "rows")
        + drawing(chart.id, f"{chart.title} over steps", _description(series, levels, chart.percent), shapes)
        + labels("left", names, "names")
        + labels("left", ((x(step), text(step)) for step in columns), "columns")
        + '<div class="tip" hidden></div></div>'
    )


def _down(y: Scale, value: float) -> float:
    """Return the coordinate from the top; values far outside the scale are clamped just outside the frame."""
    return min(1500.0, max(-500.0, 1000 * (1 - y(value))))


def _tick(value: float, in_percent: bool) -> str:
    if in_percent:
        return f"{100 * value:.3g}%"
    return f"{value:g}" if abs(value) < 1000 else text(value)


def _line(s: Series, x: Scale, y: Scale) -> str:
    kind, smooth = f"s{s.colour}" + (" dashed" if s.dashed else ""), s.smooth
    drawn = thin(s.points, DOTS if s.dots else RAW_POINTS)
    path = _path(drawn, x, y)
    if s.dots:
        dots = "".join(f"M{left:.1f} {top:.1f}h0" for left, top in _places(drawn, x, y) if top is not None)
        body = f'<path class="s{s.colour} thin" d="{path}"/><path class="s{s.colour} dot" d="{dots}"/>'
    elif smooth is not s.points:
        body = f'<path class="s{s.colour} raw" d="{path}"/><path class="{kind}" d="{_path(smooth, x, y)}"/>'
    else:
        body = f'<path class="{kind}" d="{path}"/>'
    holes = thin(s.points, RAW_POINTS)
    gaps = "".join(f"M{1000 * x(step):.1f} 1000V955" for step in holes.steps[~np.isfinite(holes.values)])
    return body + (f'<path class="gap" d="{gaps}"/>' if gaps else "")


def _path(points: Points, x: Scale, y: Scale) -> str:
    """Return a polyline with a gap at every NaN; a lone point between two becomes a dot."""
    parts, pen_down = [], False
    for left, top in _places(points, x, y):
        if top is not None:
            parts.append(f"{'L' if pen_down else 'M'}{left:.1f} {top:.1f}" + ("" if pen_down else "h0"))
        pen_down = top is not None
    return "".join(parts)


def _places(points: Points, x: Scale, y: Scale) -> list[tuple[float, float | None]]:
    return [
        (1000 * x(step), _down(y, value) if math.isfinite(value) else None)
        for step, value in zip(points.steps.tolist(), points.values.tolist(), strict=True)
    ]


def _marks_within(marks: Sequence[Mark], x: Scale) -> dict[str, list[Mark]]:
    """Return the marks by kind that are within the frame and few enough to be useful."""
    shown: dict[str, list[Mark]] = {}
    for mark in marks:
        if mark.kind == PHASE:  # the first begins before its first log line
            mark = replace(mark, step=max(mark.step, x.low))
        if x.low <= mark.step <= x.high:
            shown.setdefault(mark.kind, []).append(mark)
    return {kind: marks for kind, marks in shown.items() if len(marks) <= MOST_MARKS}


def _legend(chart: Chart, series: list[Series], levels: Sequence[Level], marks: dict[str, list[Mark]]) -> str:
    """Return the legend with last values, so that readers need not look at the axis."""
    items = [
        _key(
            f"s{s.colour}" + (" dot" if s.dots else " dashed" if s.dashed else ""),
            "M9 5h0" if s.dots else "M1 5H17",
            s.name,
            text(last(s.smooth), chart.percent),
        )
        for s in series
    ]
    items += [_key("level", "M1 5H17", level.name, text(level.value, chart.percent)) for level in levels]
    items += [
        _key(kind, "M9 0V10", kind, text(len(of_kind)))
        for kind, of_kind in marks.items()
        if kind != PHASE and chart.wide  # one chart per section explains the marks
    ]
    return f'<ul class="legend">{"".join(items)}</ul>'


def _key(kind: str, path: str, name: str, value: str) -> str:
    return (
        f'<li><svg viewBox="0 0 18 10" aria-hidden="true"><path class="{kind}" d="{path}"/></svg>'
        f"{escape(name)} <b>{value}</b></li>"
    )


def _broken(series: Sequence[Series]) -> str:
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


def _outside(chart: Chart, values: NDArray[np.float64], y: Scale) -> str:
    outside = int(((values < y.low) | (values > y.high)).sum())
    if not outside:
        return ""
    extent = f"from {text(float(values.min()), chart.percent)} to {text(float(values.max()), chart.percent)}"
    count = (
        f"1 of {len(values):,} values lies" if outside == 1 else f"{outside:,} of {len(values):,} values lie"
    )
    return f'<p class="aside">{count} outside the frame; they reach {extent}.</p>'


def _description(series: list[Series], levels: Sequence[Level], in_percent: bool) -> str:
    """Describe the first and last value of each line, and the levels."""
    parts = []
    for s in series:
        finite = np.isfinite(s.points.values)
        values, steps = s.points.values[finite], s.points.steps[finite]
        parts.append(
            f"{s.name}: {text(float(values[0]), in_percent)} at step {text(steps[0])}, "
            f"{text(float(values[-1]), in_percent)} at step {text(steps[-1])}"
        )
    parts += [f"{level.name}: {text(level.value, in_percent)}" for level in levels]
    return "; ".join(parts) + "."


def _table(series: list[Series], in_percent: bool) -> str:
    """Return the numbers of the picture: up to twelve evenly spaced steps of the sparsest series that has that many."""
    by_count = sorted(series, key=lambda s: len(s.points.steps))
    chosen = next((s for s in by_count if len(s.points.steps) >= 6), by_count[-1]).points.steps
    steps = np.unique(chosen[np.linspace(0, len(chosen) - 1, min(12, len(chosen))).round().astype(int)])
    reach = (steps[-1] - steps[0]) / max(1, len(steps) - 1) / 2 if len(steps) > 1 else 0.0
    rows = [
        [text(float(step)), *(text(_near(s.points, step, reach), in_percent) for s in series)]
        for step in steps
    ]
    return numbers(["step", *(s.name for s in series)], rows)


def _near(points: Points, step: float, reach: float) -> float | None:
    """Return the value logged nearest to `step`, None if there is none within `reach`."""
    index = int(np.argmin(np.abs(points.steps - step)))
    return float(points.values[index]) if abs(points.steps[index] - step) <= reach else None


def for_script(series: list[Series], x: Scale, in_percent: bool) -> str:
    """Return what the script needs to read values off the picture: names and points, four digits each."""
    lines = []
    for s in series:
        drawn = s.smooth if s.smooth is not s.points else thin(s.points, DOTS)
        finite = np.isfinite(drawn.values)
        lines.append(
            {
                "name": s.name,
                "steps": [int(step) for step in drawn.steps[finite]],
                "values": [float(f"{value:.4g}") for value in drawn.values[finite]],
            }
        )
    return json.dumps({"x": [x.low, x.high], "percent": in_percent, "lines": lines}, separators=(",", ":"))


# Draw the pictures of studies: panels side by side, each with axes of its own and the names of its lines, in their
# colours, above it; or a strip. Several lines of one colour are one thing measured more than once: the faint ones have
# no name.


COLOURS = ("#2f81f7", "#d9730d", "#1f9d6b", "#a371f7", "#d6409f", "#b58900", "#0aa2c0", "#8b949e")
GREY = "#7d8590"
WIDE, HIGH = 760, 400
LEFT, RIGHT, TOP, BOTTOM = 58, 16, 30, 50
LINE = 18
"""Units of a line of text."""

STYLE = f"""<style>
text {{ font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; fill: {GREY} }}
.title {{ font-weight: 600 }}
.grid {{ stroke: {GREY}; stroke-opacity: .25; fill: none }}
.level {{ stroke: {GREY}; stroke-dasharray: 5 4; fill: none }}
.line {{ fill: none; stroke-width: 2.2; stroke-linejoin: round; stroke-linecap: round }}
.faint {{ stroke-opacity: .35; stroke-width: 1.2 }}
</style>"""


@dataclass(frozen=True)
class Line:
    """One curve: its points from left to right."""

    name: str
    points: list[tuple[float, float]]
    colour: int = 0
    """Number in COLOURS."""
    faint: bool = False
    """Thin, without dots and without a name."""


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    x_label: str
    y_label: str
    lines: list[Line]
    levels: dict[str, float] = field(default_factory=dict)
    """Values to compare with, by name: dashed across the panel."""
    log_x: bool = False
    ceiling: float = math.inf
    """What lies above it, or is not finite, is drawn as an arrow at the top."""


@dataclass(frozen=True)
class Strip:
    """A row for each name with a point for each of its values, and a bar at their mean."""

    title: str
    x_label: str
    rows: dict[str, list[float]]
    levels: dict[str, float] = field(default_factory=dict)


def strip_svg(strip: Strip, description: str) -> str:
    """Return a picture of a strip; values that are not finite are left out."""
    rows = {name: [v for v in values if math.isfinite(v)] for name, values in strip.rows.items()}
    every = [*(v for values in rows.values() for v in values), *strip.levels.values()] or [0.0]
    margin = 0.06 * (max(every) - min(every)) or 1.0
    scale = Scale(min(every) - margin, max(every) + margin)
    left, height = 300, TOP + 2 * LINE * max(1, len(rows)) + BOTTOM + LINE * len(strip.levels)

    def x(value: float) -> float:
        return left + scale(value) * (WIDE - RIGHT - left)

    bottom = TOP + 2 * LINE * len(rows)
    parts = [f'<text class="title" x="12" y="18">{escape(strip.title)}</text>']
    for value in scale.ticks(6):
        parts.append(f'<path class="grid" d="M{x(value):.1f} {TOP}V{bottom}"/>')
        parts.append(f'<text x="{x(value):.1f}" y="{bottom + LINE}" text-anchor="middle">{value:g}</text>')
    for row, (name, value) in enumerate(strip.levels.items()):
        parts.append(f'<path class="level" d="M{x(value):.1f} {TOP}V{bottom}"/>')
        parts.append(
            f'<text x="12" y="{bottom + BOTTOM + LINE * row}">- - {escape(name)} ({value:.4g})</text>'
        )
    for row, (name, values) in enumerate(rows.items()):
        colour, y = COLOURS[row % len(COLOURS)], TOP + LINE + 2 * LINE * row
        parts.append(f'<text x="{left - 12}" y="{y + 4}" text-anchor="end">{escape(name)}</text>')
        parts += [
            f'<circle cx="{x(v):.1f}" cy="{y}" r="4" fill="{colour}" fill-opacity=".6"/>' for v in values
        ]
        if values:
            middle = x(sum(values) / len(values))
            parts.append(f'<path class="line" stroke="{colour}" d="M{middle:.1f} {y - 9}v18"/>')
    parts.append(f'<text x="{(left + WIDE) / 2:g}" y="{bottom + 2 * LINE}" text-anchor="middle">'
                 f"{escape(strip.x_label)}</text>")  # fmt: skip
    return _document(WIDE, height, strip.title, description, parts)


def svg(panels: list[Panel], description: str) -> str:
    """Return the picture; `description` says in words what it shows, for those who cannot see it."""
    width = (WIDE if len(panels) == 1 else WIDE * 1.25) / len(panels)
    names = max(len(_named(panel)) + len(panel.levels) for panel in panels)
    high = HIGH + LINE * names
    parts = [
        f'<g transform="translate({number * width:g} 0)">{_panel(panel, width, high, names)}</g>'
        for number, panel in enumerate(panels)
    ]
    title = " and ".join(panel.title for panel in panels)
    return _document(width * len(panels), high, title, description, parts)


def _document(width: float, high: float, title: str, description: str, parts: list[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {high:g}" role="img" '
        f'aria-labelledby="title desc">\n<title id="title">{escape(title)}</title>\n'
        f'<desc id="desc">{escape(description)}</desc>\n{STYLE}\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _named(panel: Panel) -> list[Line]:
    return [line for line in panel.lines if not line.faint]


def _panel(panel: Panel, width: float, high: float, names: int) -> str:
    across, up = _scales(panel)
    left, right, top, bottom = LEFT, width - RIGHT, TOP + 8 + LINE * names, high - BOTTOM

    def x(value: float) -> float:
        return left + across(value) * (right - left)

    def y(value: float) -> float:
        return bottom - up(value) * (bottom - top)

    columns = sorted({x for line in panel.lines for x, _ in line.points}) if panel.log_x else across.ticks(6)
    parts = [f'<text class="title" x="{LEFT}" y="18">{escape(panel.title)}</text>']
    for value in up.ticks(5):
        parts.append(f'<path class="grid" d="M{left} {y(value):.1f}H{right:g}"/>')
        parts.append(f'<text x="{left - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
    for value in columns:
        label = f"{value:g}" if panel.log_x else text(value)
        parts.append(f'<text x="{x(value):.1f}" y="{bottom + LINE}" text-anchor="middle">{label}</text>')
    parts.append(
        f'<text x="{(left + right) / 2:g}" y="{high - 10}" text-anchor="middle">{escape(panel.x_label)}</text>'
        f'<text transform="translate(14 {(top + bottom) / 2:g}) rotate(-90)" text-anchor="middle">'
        f"{escape(panel.y_label)}</text>"
    )
    parts += [
        f'<path class="level" d="M{left} {y(value):.1f}H{right:g}"/>' for value in panel.levels.values()
    ]
    for line in panel.lines:
        colour, path, marks, pen_down = COLOURS[line.colour % len(COLOURS)], "", "", False
        for at, value in line.points:
            inside = value <= panel.ceiling  # false for NaN
            if inside:
                path += f"{'L' if pen_down else 'M'}{x(at):.1f} {y(value):.1f}"
                marks += f'<circle cx="{x(at):.1f}" cy="{y(value):.1f}" r="3" fill="{colour}"/>'
            else:
                marks += f'<path fill="{colour}" d="M{x(at) - 5:.1f} {top + 9}h10l-5 -9z"/>'
            pen_down = inside
        kind = "line faint" if line.faint else "line"
        parts.append(f'<path class="{kind}" stroke="{colour}" d="{path}"/>' + ("" if line.faint else marks))
    return "".join(parts) + _names(panel)


def _scales(panel: Panel) -> tuple[Scale, Scale]:
    """Return the scales of a panel's axes, to the right and upwards."""
    xs = [x for line in panel.lines for x, _ in line.points]
    ys = [y for line in panel.lines for _, y in line.points if y <= panel.ceiling]
    ys += panel.levels.values()
    margin = 0.06 * (max(ys) - min(ys)) or 1.0
    up = Scale(min(ys) - margin, max(ys) + margin)
    if panel.log_x:
        factor = (max(xs) / min(xs)) ** 0.04 if max(xs) > min(xs) else 10.0
        return Scale(min(xs) / factor, max(xs) * factor, log=True), up
    first = min(0.0, *xs)
    return Scale(first, max(xs) + (0.04 * (max(xs) - first) or 1.0)), up


def _names(panel: Panel) -> str:
    entries = [(COLOURS[line.colour % len(COLOURS)], "line", line.name) for line in _named(panel)]
    entries += [(GREY, "level", f"{name} ({value:.3g})") for name, value in panel.levels.items()]
    return "".join(
        f'<path class="{kind}" stroke="{colour}" d="M{LEFT} {32 + LINE * row}h22"/>'
        f'<text x="{LEFT + 30}" y="{36 + LINE * row}">{escape(name)}</text>'
        for row, (colour, kind, name) in enumerate(entries)
    )
