"""The fine-tunings that a seed chooses between: every combination of the grid's values, and its restarts."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

from pretrain.evaluate.downstream.settings import EvaluationSettings

SEEDS = 1_000_000
"""Distance of the seeds of two restarts, beyond that of any two seeds of a result."""


class Candidate(NamedTuple):
    """One combination of values and one restart of it."""

    values: dict[str, Any]
    restart: int
    """Counted from 0, which begins as a single training does."""

    def __str__(self) -> str:
        """Name it as on the command line.

        >>> str(Candidate({"lr": 3e-05, "batch": 16}, 1))
        'lr=3e-05 batch=16 restart 1'
        """
        names = [f"{key}={value:g}" for key, value in self.values.items()]
        return " ".join(names + ([f"restart {self.restart}"] if self.restart else [])) or "first training"

    def outcome(self, tuned: float | None) -> dict[str, Any]:
        """Return what result.json says of it: `tuned` is its metric on the tuning examples, None where its loss was not
        finite."""
        return {**self.values, "restart": self.restart, "tuned": tuned}

    def of(self, settings: EvaluationSettings) -> EvaluationSettings:
        """Return the settings with its values in place."""
        return replace(settings, **self.values)

    def seed(self, seed: int) -> int:
        """Return the seed of its head and of the order of its examples."""
        return seed + SEEDS * self.restart


def candidates(settings: EvaluationSettings) -> list[Candidate]:
    """Return all of them, in the order of the grid's keys and values, restarts last; a single one without a grid.

    >>> grid = {"lr": [5e-5, 3e-5], "batch": [16, 32]}
    >>> [str(one) for one in candidates(EvaluationSettings(grid=grid, tune_share=0.1))]
    ['lr=5e-05 batch=16', 'lr=5e-05 batch=32', 'lr=3e-05 batch=16', 'lr=3e-05 batch=32']
    """
    combinations = product(*settings.grid.values())
    return [
        Candidate(dict(zip(settings.grid, values, strict=True)), restart)
        for values in combinations
        for restart in range(settings.restarts)
    ]


def leading(outcomes: Sequence[dict[str, Any]]) -> int | None:
    """Return the number of the best outcome, the earlier of equal ones; None where no loss was finite.

    >>> leading([{"tuned": None}, {"tuned": 60.0}, {"tuned": 60.0}])
    1
    """
    finite = [number for number, one in enumerate(outcomes) if one["tuned"] is not None]
    return max(finite, key=lambda number: outcomes[number]["tuned"], default=None)
