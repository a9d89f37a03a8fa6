"""Estimate the remaining seconds of a run."""

from collections.abc import Mapping, Sequence
from typing import Any

from data_pipeline.loader.batch_sizes import BatchSizes
from pretrain.run.time_budget import SHARE
from pretrain.run.tolerant_json import number


def seconds_left(
    step: int,
    a_step: float,
    phases: Sequence[Mapping[str, Any]],
    measured: float | None = None,
    newest: Mapping[str, Any] | None = None,
) -> float:
    """Return the remaining seconds of a run that has done `step` steps, at `a_step` seconds per step, measured up to
    the step `measured` (None: up to `step`). `phases`: from `phases_in`; other steps than the measured one are scaled
    by their tokens, and of a phase with train.minutes the minutes count. `newest`: the newest figures."""
    here = _place(step, phases)
    if here is None:
        return 0.0
    known = _place(step if measured is None else measured, phases)
    there = phases[here if known is None else known]
    at = max(step if measured is None else measured, _of(there, "first") + 1)
    size = _tokens(there, at - 1, at)
    left = 0.0
    for place, phase in enumerate(phases[here:]):
        if phase.get("minutes"):
            left += 0.0 if phase.get("last") is not None else _of_budget(phase, newest or {})
            continue
        first, last = _first_and_last(phase, step, started=not place)
        if first < last:
            left += a_step * (_tokens(phase, first, last) / size if size else last - first)
    return left


def phases_in(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the phases of a run according to summary.json; without phases, the run as the only one. Empty if it says
    nothing of how long the run is."""
    if isinstance(phases := summary.get("phases"), list) and phases:
        return [phase for phase in phases if isinstance(phase, dict)]
    steps, minutes = number(summary.get("steps")), number(summary.get("minutes"))
    if steps is None and minutes is None:
        return []
    return [{"first": 0, "last": steps, "minutes": minutes}]


def phase_at(step: float, phases: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the phase of the run's step `step`, counted from 1; None if there is none."""
    place = _place(step, phases)
    return None if place is None else phases[place]


def _place(step: float, phases: Sequence[Mapping[str, Any]]) -> int | None:
    unknown = float("inf")
    ends = [unknown if phase.get("last", 0) is None else _of(phase, "last") for phase in phases]
    return next((place for place, end in enumerate(ends) if step <= end), None)


def _first_and_last(phase: Mapping[str, Any], step: int, started: bool) -> tuple[float, float]:
    """Return the steps between which the phase's remaining ones are. Where an earlier phase has train.minutes it is
    unknown when this one starts: it is then as long as it says, from step 0."""
    begin, last = _of(phase, "first"), number(phase.get("last"))
    end = begin + _of(phase, "steps") if last is None else last
    known = started or phase.get("first") is not None
    return (max(begin, step) if known else begin), end


def _of_budget(phase: Mapping[str, Any], newest: Mapping[str, Any]) -> float:
    """Return the seconds that are left of a phase's minutes: all, where the newest figures are of another phase."""
    here = newest.get("phase", "") == phase.get("name", "")
    used = number(newest.get(SHARE)) or 0.0
    return 60 * _of(phase, "minutes") * (1 - (used if here else 0.0))


def _tokens(phase: Mapping[str, Any], first: float, last: float) -> float:
    """Return the maximum number of tokens in the phase's steps from `first` up to `last`, of the run."""
    names = ("global_batch", "streams", "batch_ramp_from", "batch_ramp")
    full, streams, *ramp = (int(_of(phase, name)) for name in names)
    sizes = BatchSizes(full, streams, *ramp) if streams else BatchSizes(full, 1)
    begin = _of(phase, "first")
    low, high = (sizes.before(max(0, int(step - begin))) for step in (first, last))
    return (high - low) * _of(phase, "sequence_length")


def _of(phase: Mapping[str, Any], name: str) -> float:
    return number(phase.get(name)) or 0.0
