"""Draw the picture of a study: what its arms have in the figure that leads."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from pretrain.evaluate.studies.charts import Line, Panel, Strip, strip_svg, svg
from pretrain.evaluate.studies.compare import Row, named, runs_of, shown, unigram_of
from pretrain.evaluate.studies.design import Design
from pretrain.evaluate.studies.measured import Cell, Measured, best_values

FOLLOWS_FROM = {"context_gain": "held_out_mask_loss", "tokens_to_context": "held_out_mask_loss"}
"""Figure that is measured at the end -> the curve that it is read from."""


def figure_to_draw(rows: Sequence[Row]) -> str:
    """Return the first figure that an arm has, which is the one that leads wherever that was measured; empty without
    any."""
    return next((row.figure for row in rows if row.values), "")


def picture_of(design: Design, figure: str, rows: Sequence[Row], found: Mapping[Cell, Measured]) -> str:
    """Return a picture of a figure: curves over tokens where the runs have them, else the values of each arm."""
    own = [row for row in rows if row.figure == figure]
    words = "; ".join(
        f"{design.label(r.arm)}: {shown(figure, statistics.fmean(r.values.values()))}"
        for r in own
        if r.values
    )
    curves = _curve_figure(design, figure, found)
    lines = list(_lines(design, curves, found))
    if lines:
        level = unigram_of(found)
        levels = {} if level is None else {"word frequencies alone": level}
        panel = Panel(design.title, "tokens", named(curves), lines, levels, ceiling=(level or math.inf) + 1.0)
        return svg([panel], f"{named(curves)} over tokens. {named(figure)}: {words}.")
    strips = {design.label(row.arm): list(row.values.values()) for row in own if row.values}
    return strip_svg(Strip(design.title, named(figure), strips), words)


def _curve_figure(design: Design, figure: str, found: Mapping[Cell, Measured]) -> str:
    """Return what the curves of a figure show: itself, or what it follows from; empty for tasks."""
    if "." in figure:
        return ""
    in_curves = {name for one in found.values() for point in one.curve for name in point}
    candidates = (figure, FOLLOWS_FROM.get(figure, ""), *design.figures)
    return next((name for name in candidates if name in in_curves), "held_out_mask_loss")


def _lines(design: Design, figure: str, found: Mapping[Cell, Measured]) -> Iterable[Line]:
    """Yield for each arm the mean of its curves with a name, and each seed's, faint."""
    best = best_values(found.values(), design.figure)
    for colour, (arm, seeds) in enumerate(runs_of(design, found).items()):
        curves = [
            [(p["tokens"], p[figure]) for p in one.curve if figure in p and p["tokens"]]
            for one in seeds.values()
        ]
        curves = [curve for curve in curves if curve]
        if not curves:
            continue
        if len({len(curve) for curve in curves}) == 1:
            ys = zip(*([y for _, y in curve] for curve in curves), strict=True)
            mean = list(zip([x for x, _ in curves[0]], map(statistics.fmean, ys), strict=True))
        else:
            mean = curves[0]
        values = "".join(f", {key.rpartition('.')[2]} {value:g}" for key, value in best.get(arm, ()))
        yield Line(f"{design.label(arm)}{values}", mean, colour)
        if len(curves) > 1:
            yield from (Line(arm, curve, colour, faint=True) for curve in curves)
