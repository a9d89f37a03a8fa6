"""Draw curves and points of runs as an SVG that needs nothing else, readable on white and on black.

A picture has panels side by side, each with axes of its own; a panel's names, in the colours of its lines, are above
it. Several lines of one colour are one thing measured more than once: the faint ones have no name.
"""

import math
from dataclasses import dataclass, field
from html import escape

from pretrain.report.charts import text, ticks

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
    low, high = min(every) - margin, max(every) + margin
    left, high_px = 300, TOP + 2 * LINE * max(1, len(rows)) + BOTTOM + LINE * len(strip.levels)

    def x(value: float) -> float:
        return left + (value - low) / (high - low) * (WIDE - RIGHT - left)

    bottom = TOP + 2 * LINE * len(rows)
    parts = [f'<text class="title" x="12" y="18">{escape(strip.title)}</text>']
    for value in ticks(low, high, 6):
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
    return _document(WIDE, high_px, strip.title, description, parts)


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


class _Axes:
    """Map values to places in a panel."""

    def __init__(self, panel: Panel, width: float, top: float, bottom: float) -> None:
        xs = [self._scaled(x, panel) for line in panel.lines for x, _ in line.points]
        ys = [y for line in panel.lines for _, y in line.points if y <= panel.ceiling]
        ys += panel.levels.values()
        margin = 0.06 * (max(ys) - min(ys)) or 1.0
        self.low, self.high = min(ys) - margin, max(ys) + margin
        start = min(xs) if panel.log_x else min(0.0, *xs)
        room = 0.04 * (max(xs) - start) or 1.0
        self.first, self.last = start - (room if panel.log_x else 0), max(xs) + room
        self.left, self.right, self.top, self.bottom = LEFT, width - RIGHT, top, bottom
        self._panel = panel

    @staticmethod
    def _scaled(x: float, panel: Panel) -> float:
        return math.log10(x) if panel.log_x else x

    def x(self, value: float) -> float:
        way = (self._scaled(value, self._panel) - self.first) / (self.last - self.first)
        return self.left + way * (self.right - self.left)

    def y(self, value: float) -> float:
        way = (self.high - value) / (self.high - self.low)
        return self.top + way * (self.bottom - self.top)


def _panel(panel: Panel, width: float, high: float, names: int) -> str:
    axes = _Axes(panel, width, TOP + 8 + LINE * names, high - BOTTOM)
    values = sorted({x for line in panel.lines for x, _ in line.points})
    columns = values if panel.log_x else ticks(axes.first, axes.last, 6)
    rows = ticks(axes.low, axes.high, 5)
    parts = [f'<text class="title" x="{LEFT}" y="18">{escape(panel.title)}</text>']
    parts += [f'<path class="grid" d="M{axes.left} {axes.y(y):.1f}H{axes.right:g}"/>' for y in rows]
    parts += [
        f'<text x="{axes.left - 8}" y="{axes.y(y) + 4:.1f}" text-anchor="end">{y:g}</text>' for y in rows
    ]
    parts += [
        f'<text x="{axes.x(x):.1f}" y="{axes.bottom + LINE}" text-anchor="middle">'
        f"{f'{x:g}' if panel.log_x else text(x)}</text>"
        for x in columns
    ]
    middle = (axes.left + axes.right) / 2
    parts.append(f'<text x="{middle:g}" y="{high - 10}" text-anchor="middle">{escape(panel.x_label)}</text>')
    parts.append(
        f'<text transform="translate(14 {(axes.top + axes.bottom) / 2:g}) rotate(-90)" text-anchor="middle">'
        f"{escape(panel.y_label)}</text>"
    )
    parts += [
        f'<path class="level" d="M{axes.left} {axes.y(y):.1f}H{axes.right:g}"/>'
        for y in panel.levels.values()
    ]
    parts += [_line(line, axes, panel.ceiling) for line in panel.lines]
    return "".join(parts) + _names(panel)


def _line(line: Line, axes: _Axes, ceiling: float) -> str:
    """Draw a line, interrupted where a point is outside; that one is an arrow."""
    colour, path, marks, down = COLOURS[line.colour % len(COLOURS)], "", "", False
    for x, y in line.points:
        inside = y <= ceiling  # false for NaN
        if inside:
            path += f"{'L' if down else 'M'}{axes.x(x):.1f} {axes.y(y):.1f}"
            marks += f'<circle cx="{axes.x(x):.1f}" cy="{axes.y(y):.1f}" r="3" fill="{colour}"/>'
        else:
            marks += f'<path fill="{colour}" d="M{axes.x(x) - 5:.1f} {axes.top + 9}h10l-5 -9z"/>'
        down = inside
    kind = "line faint" if line.faint else "line"
    return f'<path class="{kind}" stroke="{colour}" d="{path}"/>' + ("" if line.faint else marks)


def _names(panel: Panel) -> str:
    entries = [(COLOURS[line.colour % len(COLOURS)], "line", line.name) for line in _named(panel)]
    entries += [(GREY, "level", f"{name} ({value:.3g})") for name, value in panel.levels.items()]
    return "".join(
        f'<path class="{kind}" stroke="{colour}" d="M{LEFT} {32 + LINE * row}h22"/>'
        f'<text x="{LEFT + 30}" y="{36 + LINE * row}">{escape(name)}</text>'
        for row, (colour, kind, name) in enumerate(entries)
    )
