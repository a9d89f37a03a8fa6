"""Define a chart by the metrics that it draws, and those of train.probe."""

from collections.abc import Callable
from dataclasses import dataclass

from pretrain.report.html.charts.figures import Level, Series
from pretrain.report.html.record import RunRecord, last
from pretrain.run.metrics import HELD_OUT
from pretrain.run.metrics_log import PROBE_PREFIX, TRIVIAL

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
