"""Create the initial summary.json of a process from the run and its earlier attempts."""

import math
from datetime import UTC, datetime
from typing import Any

from data_pipeline.io.redact import redact
from pretrain.config.phases import Phase
from pretrain.config.settings import RunConfig
from pretrain.distributed.engine import Engine
from pretrain.distributed.world import World
from pretrain.preflight.check_run import Plan
from pretrain.preflight.flops import peak_source
from pretrain.run.machine import machine
from pretrain.run.metrics_file import TRUST
from pretrain.training.resume import real_shapes


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
        "steps": plans[-1].phase.last,
        "headline": plans[-1].objective.headline,
        "parameters": sum(math.prod(shape) for shape in real_shapes(engine).values()),
        "peak_source": peak_source(world.device, config.monitor.peak_tflops),
        "data": plans[0].index.statistics,
    }
    phases = phases_of(plans)
    return summary | {"phases": phases} if phases else summary


def phases_of(plans: list[Plan]) -> list[dict[str, Any]]:
    """Return the named phases in short; empty if the run has a single unnamed phase."""
    return [_in_short(plan.phase) for plan in plans] if plans[0].phase.name else []


def _in_short(phase: Phase) -> dict[str, Any]:
    train, length = phase.config.train, phase.config.data.sequence_length
    batch = {"global_batch": train.global_batch, "sequence_length": length, "lr": phase.config.optim.lr}
    return {"name": phase.name, "first": phase.first, "last": phase.last, **batch}


def now() -> str:
    """Return the time of day, to the second, with its zone."""
    return datetime.now(UTC).isoformat(timespec="seconds")
