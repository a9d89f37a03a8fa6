"""Format the numbers of a chart as text, as a table, and as data for the page's script."""

import json
from dataclasses import dataclass
from html import escape

import numpy as np

from pretrain.report.html.charts.scales import text, thin
from pretrain.report.html.record import Points

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
