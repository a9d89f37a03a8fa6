"""Estimate the remaining seconds of a run."""

from collections.abc import Sequence
from typing import Any

from pretrain.run.tolerant_json import number


def seconds_left(
    step: int, a_step: float, steps: int, phases: Sequence[dict[str, Any]], measured: float | None = None
) -> float:
    """Return the remaining seconds of a run that has done `step` of `steps` steps, at `a_step` seconds per step,
    measured up to the step `measured` (None: up to `step`). `phases`: as in summary.json, empty for a run without
    phases; steps of other phases than the measured one are scaled by their tokens."""
    here = _place(step, phases)
    if here is None:
        return max(0, steps - step) * a_step
    known = _place(step if measured is None else measured, phases)
    size = _tokens(phases[here if known is None else known])
    left = 0.0
    for phase in phases[here:]:
        count = max(0.0, _of(phase, "last") - max(_of(phase, "first"), step))
        left += count * a_step * (_tokens(phase) / size if size else 1.0)
    return left


def phase_at(step: float, phases: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the phase of the run's step `step`, counted from 1; None if there is none."""
    place = _place(step, phases)
    return None if place is None else phases[place]


def _place(step: float, phases: Sequence[dict[str, Any]]) -> int | None:
    return next((place for place, phase in enumerate(phases) if step <= _of(phase, "last")), None)


def _tokens(phase: dict[str, Any]) -> float:
    """Return the maximum number of tokens per step."""
    return _of(phase, "global_batch") * _of(phase, "sequence_length")


def _of(phase: dict[str, Any], name: str) -> float:
    return number(phase.get(name)) or 0.0
