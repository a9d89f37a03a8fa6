"""Create the initial summary.json of a process from the run and its earlier attempts."""

import math
from datetime import UTC, datetime
from typing import Any

from data_pipeline.errors import redact
from pretrain.checkpoint.padding import real_shapes
from pretrain.config.settings import RunConfig
from pretrain.distributed.engine import Engine
from pretrain.distributed.world import World
from pretrain.preflight.check_run import Plan
from pretrain.preflight.step_time import peak_source
from pretrain.run.files import objects
from pretrain.run.machine import machine
from pretrain.run.metrics_log import TRUST
from pretrain.training.progress import Position


def begun(
    config: RunConfig,
    plans: list[Plan],
    engine: Engine,
    world: World,
    command: str,
    left: dict[str, Any],
    lines: list[dict[str, Any]],
) -> dict[str, Any]:
    """Create the summary. Its newest figures are those of `left`, the previous attempt's summary, and of `lines`, the
    lines still in metrics.jsonl."""
    summary: dict[str, Any] = {"started": left.get("started", now()), **machine(world)}
    for line in lines:
        if line.get("kind") != TRUST:
            summary |= {key: value for key, value in line.items() if key != "kind"}
    summary |= {
        "command": redact(command),
        "headline": plans[-1].objective.headline,
        "parameters": sum(math.prod(shape) for shape in real_shapes(engine).values()),
        "peak_source": peak_source(world.device, config.monitor.peak_tflops),
        "data": plans[0].index.statistics,
    }
    last, minutes = plans[-1].phase.last, plans[0].phase.config.train.minutes
    summary |= {"steps": last} if last is not None else {}
    if not (phases := phases_of(plans, left)):
        return summary | ({"minutes": minutes} if minutes else {})
    return summary | {"phases": phases}


def phases_of(plans: list[Plan], left: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the phases in short; empty if the run has a single unnamed phase whose batches are all alike. Where phases
    with train.minutes began and ended is known from `left`, the previous attempt's summary."""
    first = plans[0].phase
    if not (first.name or first.config.train.batch_ramp):
        return []
    known = {phase.get("name"): phase for phase in objects(left.get("phases"))}
    return [_in_short(plan, known.get(plan.phase.name, {})) for plan in plans]


def _in_short(plan: Plan, before: dict[str, Any]) -> dict[str, Any]:
    phase = plan.phase
    train, length = phase.config.train, phase.config.data.sequence_length
    first, last = (
        before.get(name) if own is None else own
        for name, own in (("first", phase.first), ("last", phase.last))
    )
    long = {"minutes": train.minutes} if train.minutes else {"steps": train.steps}
    batch = {"global_batch": train.global_batch, "sequence_length": length, "lr": phase.config.optim.lr}
    if train.batch_ramp:
        ramp = {"batch_ramp": train.batch_ramp, "batch_ramp_from": train.batch_ramp_from}
        batch |= ramp | {"streams": plan.streams}
    return {"name": phase.name, "first": first, "last": last, **long, **batch}


def set_bounds(summary: dict[str, Any], position: Position, last: int | None) -> None:
    """Record in the summary where the phase at `position` begins and, if known, ends, and that the one before has
    ended."""
    for number, phase in enumerate(summary.get("phases", ())):
        if number == position.phase - 1:
            phase["last"] = position.phase_step
        if number == position.phase:
            phase |= {"first": position.phase_step, "last": last}


def now() -> str:
    """Return the time of day, to the second, with its zone."""
    return datetime.now(UTC).isoformat(timespec="seconds")
