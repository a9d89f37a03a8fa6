"""Where a run stands and how long a step takes in; the seconds that are left out."""

from collections.abc import Sequence
from typing import Any

from pretrain.forgiving import number


def seconds_left(step: int, a_step: float, steps: int, phases: Sequence[dict[str, Any]]) -> float:
    """Of a run of `steps` steps that has done `step` of them, at `a_step` seconds each. `phases`: as summary.json has
    them, none for a run without; steps of a later phase count by their tokens."""
    here = next((place for place, phase in enumerate(phases) if step <= _of(phase, "last")), None)
    if here is None:
        return max(0, steps - step) * a_step
    size = _tokens(phases[here])
    left = (_of(phases[here], "last") - step) * a_step
    for phase in phases[here + 1 :]:
        count = max(0.0, _of(phase, "last") - _of(phase, "first"))
        left += count * a_step * (_tokens(phase) / size if size else 1.0)
    return left


def _tokens(phase: dict[str, Any]) -> float:
    """Of a step, at most."""
    return _of(phase, "global_batch") * _of(phase, "sequence_length")


def _of(phase: dict[str, Any], name: str) -> float:
    return number(phase.get(name)) or 0.0
