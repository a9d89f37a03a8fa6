"""Show how the scores of tasks rise with the epochs of fine-tuning, where a task's settings say by_epoch."""

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


def means(design: Design, found: Mapping[Cell, Measured], figure: str) -> dict[str, list[float]]:
    """Return arm -> the figure after each epoch, means over the seeds, as far as all of them were fine-tuned."""
    curves = {
        arm: [one.by_epoch[figure] for one in seeds.values() if figure in one.by_epoch]
        for arm, seeds in runs_of(design, found).items()
    }
    return {
        arm: [statistics.fmean(seeds) for seeds in zip(*of_seeds, strict=False)]
        for arm, of_seeds in curves.items()
        if of_seeds
    }


def epoch_rows(
    design: Design, found: Mapping[Cell, Measured], figure: str
) -> tuple[list[str], list[list[str]]]:
    """Return the head of a table of one figure and its rows, an epoch each."""
    curves = means(design, found, figure)
    rows = [
        [
            str(epoch + 1),
            *(shown(figure, curve[epoch]) if epoch < len(curve) else "" for curve in curves.values()),
        ]
        for epoch in range(max(map(len, curves.values())))
    ]
    return ["epoch", *map(design.label, curves)], rows


def epoch_picture(design: Design, found: Mapping[Cell, Measured]) -> str:
    """Return a picture of the first figures with curves, a panel each; empty without any."""
    panels = [_panel(design, found, figure) for figure in epoch_figures(found)[:PANELS]]
    if not panels:
        return ""
    words = "; ".join(f"{line.name}: {line.points[-1][1]:.4g}" for line in panels[0].lines)
    return svg(panels, f"{panels[0].y_label} by epoch of fine-tuning, at the end: {words}.")


def _panel(design: Design, found: Mapping[Cell, Measured], figure: str) -> Panel:
    lines: Sequence[Line] = [
        Line(design.label(arm), [(epoch + 1.0, value) for epoch, value in enumerate(curve)], colour)
        for colour, (arm, curve) in enumerate(means(design, found, figure).items())
    ]
    return Panel(named(figure), "epochs of fine-tuning", named(figure), list(lines))
