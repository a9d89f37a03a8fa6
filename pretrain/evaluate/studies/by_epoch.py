"""Show how the scores of tasks rise with the epochs of fine-tuning, where a task's settings say by_epoch."""

import itertools
import statistics
from collections.abc import Mapping, Sequence

from pretrain.evaluate.studies.charts import Line, Panel, svg
from pretrain.evaluate.studies.compare import named, runs_of, shown
from pretrain.evaluate.studies.design import Design
from pretrain.evaluate.studies.measured import Cell, Measured

PANELS = 2
"""Panels of the picture: the first figures that have curves."""


def epoch_figures(found: Mapping[Cell, Measured]) -> list[str]:
    """Return the figures that were measured after each epoch."""
    return list(dict.fromkeys(name for one in found.values() for name in one.by_epoch))


def seeds_of(design: Design, found: Mapping[Cell, Measured], figure: str) -> dict[str, list[list[float]]]:
    """Return arm -> the figure after each epoch, of each seed that has it."""
    curves = {
        arm: [one.by_epoch[figure] for one in seeds.values() if figure in one.by_epoch]
        for arm, seeds in runs_of(design, found).items()
    }
    return {arm: of_seeds for arm, of_seeds in curves.items() if of_seeds}


def epoch_rows(
    design: Design, found: Mapping[Cell, Measured], figure: str
) -> tuple[list[str], list[list[str]]]:
    """Return the head of a table of one figure and its rows, an epoch each: means over the seeds, with their range, as
    far as all of them were fine-tuned."""
    curves = seeds_of(design, found, figure)
    columns = [[_cell(figure, values) for values in zip(*seeds, strict=False)] for seeds in curves.values()]
    rows = [
        [str(epoch), *cells] for epoch, cells in enumerate(itertools.zip_longest(*columns, fillvalue=""), 1)
    ]
    head = [f"{design.label(arm)} (seeds: {_count(design, len(seeds))})" for arm, seeds in curves.items()]
    return ["epoch", *head], rows


def _count(design: Design, seeds: int) -> str:
    return f"{seeds}" if seeds == len(design.seeds) else f"{seeds} of {len(design.seeds)}"


def _cell(figure: str, values: Sequence[float]) -> str:
    ends = f" ({shown(figure, min(values))} to {shown(figure, max(values))})" if len(values) > 1 else ""
    return f"{shown(figure, statistics.fmean(values))}{ends}"


def epoch_picture(design: Design, found: Mapping[Cell, Measured]) -> str:
    """Return a picture of the first figures with curves, a panel each; empty without any."""
    panels = [_panel(design, found, figure) for figure in epoch_figures(found)[:PANELS]]
    if not panels:
        return ""
    means = [line for line in panels[0].lines if not line.faint]
    words = "; ".join(f"{line.name}: {line.points[-1][1]:.4g}" for line in means)
    return svg(panels, f"{panels[0].y_label} by epoch of fine-tuning, at the end: {words}.")


def _panel(design: Design, found: Mapping[Cell, Measured], figure: str) -> Panel:
    lines: list[Line] = []
    for colour, (arm, seeds) in enumerate(seeds_of(design, found, figure).items()):
        means = [statistics.fmean(values) for values in zip(*seeds, strict=False)]
        lines.append(Line(design.label(arm), _points(means), colour))
        if len(seeds) > 1:
            lines += [Line(arm, _points(curve), colour, faint=True) for curve in seeds]
    return Panel(named(figure), "epochs of fine-tuning", named(figure), lines)


def _points(curve: Sequence[float]) -> list[tuple[float, float]]:
    return [(epoch, value) for epoch, value in enumerate(curve, 1)]
