"""Compare sums of arms with 0: the main effects and interactions of a study whose arms are the cells of a table."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pretrain.evaluate.studies.compare import Row, difference_of, verdict
from pretrain.evaluate.studies.design import Design
from pretrain.evaluate.studies.statistics import Comparison, compare_with_none


@dataclass(frozen=True)
class Contrast:
    """A sum of arms in one figure."""

    name: str
    figure: str
    comparison: Comparison
    """Of the sum with 0, over seeds: the runs of a seed are summed."""

    @property
    def as_values(self) -> dict[str, Any]:
        """Return it for a JSON file."""
        return {"name": self.name, "figure": self.figure, **self.comparison._asdict()}

    @property
    def cells(self) -> list[str]:
        """What a table shows of it: name, seeds, difference with its interval, and what it says."""
        said = difference_of(self.comparison, self.figure)
        return [self.name, str(self.comparison.seeds), said, verdict(self.comparison, self.figure)]


def contrasts_of(design: Design, rows: Sequence[Row]) -> list[Contrast]:
    """Return the study's contrasts in each figure that their arms have in all seeds, none of them without context."""
    found: list[Contrast] = []
    for figure in dict.fromkeys(row.figure for row in rows):
        values = {row.arm: row.values for row in rows if row.figure == figure and _is_whole(row)}
        sums = {
            name: _sums(weights, values, design.seeds)
            for name, weights in design.contrasts.items()
            if weights.keys() <= values.keys()
        }
        found += [Contrast(name, figure, one) for name, one in compare_with_none(sums).items()]
    return found


def _is_whole(row: Row) -> bool:
    return not row.missing and not row.no_context and all(map(math.isfinite, row.values.values()))


def _sums(
    weights: Mapping[str, float], values: Mapping[str, Mapping[int, float]], seeds: Sequence[int]
) -> list[float]:
    return [sum(weight * values[arm][seed] for arm, weight in weights.items()) for seed in seeds]
