"""Show a Forecast as tables and a curve on a console, or as plain values for JSON."""

import math
from typing import Any

from rich.console import Console
from rich.table import Table

from pretrain.phases import Phase
from pretrain.planning.forecast import Forecast, Memory
from pretrain.planning.hardware import LINK_EFFICIENCY
from pretrain.planning.memory import RESERVED

CURVE_ROWS = 8
_EIGHTHS = " ▁▂▃▄▅▆▇█"


def show_phases(phases: list[tuple[Phase, Forecast]], stage: int, console: Console) -> None:
    """Prints the forecast of each phase, and of them together."""
    for phase, found in phases:
        if phase.name:
            console.rule(f"phase {phase.name}: steps {phase.first + 1:,} to {phase.last:,}", align="left")
        show(found, stage, console)
    if len(phases) > 1:
        seconds = sum(found.seconds for _, found in phases)
        hours, ranks = seconds / 3600, phases[0][1].cluster.ranks
        tokens = sum(found.tokens for _, found in phases)
        console.rule("the whole run", align="left")
        console.print(
            f"{phases[-1][0].last:,} steps, {tokens / 1e9:,.2f} billion tokens, {hours:,.1f} hours, "
            f"{hours * ranks:,.0f} GPU-hours",
            soft_wrap=True,
            highlight=False,
        )


def phases_as_values(phases: list[tuple[Phase, Forecast]]) -> dict[str, Any]:
    """The forecast of a run as plain values: of its only phase, or a list of them with what they come to."""
    if len(phases) == 1:
        return as_values(phases[0][1])
    values = [
        {"name": phase.name, "steps": phase.config.train.steps, **as_values(found)} for phase, found in phases
    ]
    return {
        "phases": values,
        **{key: sum(v[key] for v in values) for key in ("tokens", "hours", "gpu_hours")},
    }


def show(found: Forecast, stage: int, console: Console) -> None:
    """Prints the forecast; `stage` is the run's ZeRO stage."""
    gpu, ranks = found.cluster.gpu, found.cluster.ranks
    console.print(
        f"{found.parameters:,} parameters in {found.precision} on {found.cluster.nodes} x "
        f"{found.cluster.gpus_per_node} {gpu.name}; lengths from {found.text.source}",
        soft_wrap=True,
    )
    console.print(_memory_table(found.memory, stage, gpu.memory))
    console.print(_time_table(found, ranks))
    first, most, last = found.rates[0], max(found.rates), found.rates[-1]
    console.print(f"learning rate, from {first:.3g} over {most:.3g} to {last:.3g}", soft_wrap=True)
    console.print("\n".join(curve(found.rates)))
    for line in found.warnings:
        console.print(f"! {line}", soft_wrap=True, markup=False)
    if not found.warnings:
        console.print("everything adds up")


def _memory_table(memory: tuple[Memory, ...], stage: int, capacity: float) -> Table:
    table = Table(
        title=f"memory of one GPU, GB of {capacity / 1e9:.0f}, {RESERVED:.0%} kept free", title_justify="left"
    )
    columns = (
        "ZeRO stage", "weights", "gradients", "masters", "moments", "one pass", "in all", "largest micro-batch",
    )  # fmt: skip
    for name in columns:
        table.add_column(name, justify="right")
    for row in memory:
        kept = row.states
        sizes = (kept.weights, kept.gradients, kept.masters, kept.moments, row.activations, row.total)
        table.add_row(
            f"{'> ' if row.stage == stage else ''}{row.stage}",
            *(f"{size / 1e9:.2f}" for size in sizes),
            f"{row.largest_micro_batch:,}",
        )
    return table


def _time_table(found: Forecast, ranks: int) -> Table:
    step, hours = found.step, found.seconds / 3600
    table = Table(
        title=f"time, at {found.utilisation:.0%} of the peak and {LINK_EFFICIENCY:.0%} of the links",
        title_justify="left",
        show_header=False,
    )
    rows = [
        ("arithmetic of a step", f"{step.arithmetic * 1e3:,.1f} ms in {found.micro_batches} micro-batches"),
        ("waiting for the slowest GPU", f"{step.straggling * 1e3:,.1f} ms"),
        ("optimizer", f"{step.optimizer * 1e3:,.1f} ms"),
        ("communication", f"{step.communication * 1e3:,.1f} ms for {found.moved / 1e9:,.2f} GB"),
        ("a step", f"{step.total * 1e3:,.1f} ms"),
        ("tokens of the run", f"{found.tokens / 1e9:,.2f} billion"),
        ("epochs", "unknown: no shards yet" if math.isnan(found.epochs) else f"{found.epochs:,.2f}"),
        ("hours", f"{hours:,.1f}"),
        ("GPU-hours", f"{hours * ranks:,.0f}"),
    ]
    for row in rows:
        table.add_row(*row)
    return table


def curve(values: tuple[float, ...], rows: int = CURVE_ROWS) -> list[str]:
    """A bar for each value, drawn in `rows` lines from the top down."""
    top = max(values) or 1.0
    heights = [round(value / top * rows * 8) for value in values]
    return [
        "  " + "".join(_EIGHTHS[min(8, max(0, height - 8 * row))] for height in heights)
        for row in range(rows - 1, -1, -1)
    ]


def as_values(found: Forecast) -> dict[str, Any]:
    """The forecast as plain values, for JSON."""
    return {
        "parameters": found.parameters,
        "precision": found.precision,
        "nodes": found.cluster.nodes,
        "gpus_per_node": found.cluster.gpus_per_node,
        "gpu": found.cluster.gpu.name,
        "lengths_from": found.text.source,
        "mean_tokens": found.text.length,
        "memory": [
            {
                "stage": row.stage,
                **vars(row.states),
                "activations": row.activations,
                "total": row.total,
                "largest_micro_batch": row.largest_micro_batch,
            }
            for row in found.memory
        ],
        "micro_batches": found.micro_batches,
        "collective_bytes": found.moved,
        "step_seconds": found.step._asdict() | {"total": found.step.total},
        "utilisation": found.utilisation,
        "tokens": found.tokens,
        "epochs": None if math.isnan(found.epochs) else found.epochs,
        "hours": found.seconds / 3600,
        "gpu_hours": found.seconds / 3600 * found.cluster.ranks,
        "learning_rates": list(found.rates),
        "warnings": list(found.warnings),
    }
