"""Show a Forecast as tables and a curve on a console, or as plain values for JSON."""

import math
from typing import Any

from rich.console import Console
from rich.table import Table

from pretrain.config.phases import Phase
from pretrain.preflight.forecast import Forecast
from pretrain.preflight.gpus import CALIBRATED, LINK_EFFICIENCY
from pretrain.preflight.memory import RESERVED_SHARE, Memory

CURVE_ROWS = 8
_EIGHTHS = " ▁▂▃▄▅▆▇█"


def show_phases(
    phases: list[tuple[Phase, Forecast]], stage: int, console: Console, price: float = 0.0
) -> None:
    """Print the forecast of each phase and of all together; `price`: per GPU-hour, 0: unknown."""
    for phase, found in phases:
        if phase.name:
            console.rule(f"phase {phase.name}: {phase.in_words}", align="left")
        show(found, stage, console, price)
        if minutes := phase.config.train.minutes:
            console.print(reached_in(minutes, found), markup=False, highlight=False)
    if len(phases) > 1:
        seconds = sum(found.seconds for _, found in phases)
        hours, ranks = seconds / 3600, phases[0][1].cluster.ranks
        steps, tokens = (sum(getattr(found, key) for _, found in phases) for key in ("steps", "tokens"))
        cost = f", cost {hours * ranks * price:,.2f}" if price else ""
        console.rule("the whole run", align="left")
        console.print(
            f"{steps:,} steps, {tokens / 1e9:,.2f} billion tokens, {_hours(hours)} hours, "
            f"{_hours(hours * ranks)} GPU-hours{cost}",
            highlight=False,
        )


def phases_as_values(phases: list[tuple[Phase, Forecast]], price: float = 0.0) -> dict[str, Any]:
    """Return the forecast of a run as plain values: of its only phase, or a list of phases with their totals."""
    if len(phases) == 1:
        return as_values(phases[0][1], price)
    values = [{"name": phase.name, **as_values(found, price)} for phase, found in phases]
    keys = ("tokens", "hours", "gpu_hours", *(("cost",) if price else ()))
    return {"phases": values, **{key: sum(v[key] for v in values) for key in keys}}


def reached_in(minutes: float, found: Forecast) -> str:
    """Say how far a budget of time comes on this cluster, and how sure that is."""
    epochs = "" if math.isnan(found.epochs) else f" ({found.epochs:,.2f} epochs)"
    sure = "as calibrated on this GPU" if found.calibrated else "not calibrated on this GPU, so an estimate"
    return (
        f"train.minutes={minutes:g} reaches about {found.steps:,} steps, {found.tokens / 1e9:,.4g} billion "
        f"tokens{epochs}: {sure}; the schedule follows the clock, whatever it reaches"
    )


def show(found: Forecast, stage: int, console: Console, price: float = 0.0) -> None:
    """Print the forecast, at most 80 columns wide except for names; `stage` is the run's ZeRO stage."""
    gpu = found.cluster.gpu
    console.print(
        f"{found.parameters:,} parameters in {found.precision} on {found.cluster.nodes} x "
        f"{found.cluster.gpus_per_node} {gpu.name}; lengths from {found.text.source}",
        markup=False,
        highlight=False,
    )
    console.print(_memory_table(found.memory, stage, gpu.memory))
    console.print(_time_table(found, price))
    console.print(basis_of(found), markup=False, highlight=False)
    first, most, last = found.rates[0], max(found.rates), found.rates[-1]
    console.print(f"learning rate, from {first:.3g} over {most:.3g} to {last:.3g}", highlight=False)
    console.print("\n".join(curve(found.rates)))
    for line in found.warnings:
        console.print(f"! {line}", markup=False)
    if not found.warnings:
        console.print("everything adds up")


def basis_of(found: Forecast) -> str:
    """Return what the times are based on, in words."""
    if found.calibrated:
        return (
            f"calibrated by a run measured on {found.cluster.gpu.name}: BERT-large in examples of 128 tokens reached "
            f"{CALIBRATED[found.cluster.gpu.name]:.1%} of the peak; smaller models and longer examples reach less"
        )
    return (
        f"! not calibrated on this GPU: no run on {found.cluster.gpu.name} has been measured. The times are arithmetic "
        "on data sheets, with floors for the host and for collectives; a real run is likely slower. The mfu of a "
        "short one (metrics.jsonl), given as --utilisation, brings them closer"
    )


def _memory_table(memory: tuple[Memory, ...], stage: int, capacity: float) -> Table:
    table = Table(
        title=f"memory of one GPU, GB of {capacity / 1e9:.0f}, {RESERVED_SHARE:.0%} kept free",
        title_justify="left",
    )
    table.add_column("ZeRO stage (> this run's)")
    for row in memory:
        table.add_column(f"{'> ' if row.stage == stage else ''}{row.stage}", justify="right")
    sizes = {
        "weights": [row.states.weights for row in memory],
        "gradients": [row.states.gradients for row in memory],
        "master weights": [row.states.masters for row in memory],
        "moments": [row.states.moments for row in memory],
        **({"memory of streams": streams} if any(streams := [row.states.streams for row in memory]) else {}),
        "one forward and backward pass": [row.activations for row in memory],
        "in all": [row.total for row in memory],
    }
    for name, values in sizes.items():
        table.add_row(name, *(f"{size / 1e9:.2f}" for size in values))
    table.add_row("largest micro-batch, examples", *(f"{row.largest_micro_batch:,}" for row in memory))
    return table


def _time_table(found: Forecast, price: float) -> Table:
    step, hours = found.step, found.seconds / 3600
    gpu_hours = hours * found.cluster.ranks
    table = Table(
        title=f"time, at {found.utilisation:.0%} of the peak and {LINK_EFFICIENCY:.0%} of the links",
        title_justify="left",
        show_header=False,
    )
    batches = f"{found.micro_batches} x {found.micro_batch} examples"
    cost = f"{gpu_hours * price:,.2f} at {price:g} per GPU-hour" if price else "--price-per-hour says it"
    moved = f"{step.communication * 1e3:,.1f} ms for {found.moved / 1e9:,.2f} GB"
    if found.cluster.ranks == 1:
        moved = "none: one GPU"
    rows = [
        ("arithmetic per step", f"{step.arithmetic * 1e3:,.1f} ms in {batches}"),
        ("waiting for the host", f"{step.launching * 1e3:,.1f} ms"),
        ("waiting for the slowest GPU", f"{step.straggling * 1e3:,.1f} ms"),
        ("optimizer", f"{step.optimizer * 1e3:,.1f} ms"),
        ("communication", moved),
        ("one step", f"{step.total * 1e3:,.1f} ms"),
        ("tokens of the run", f"{found.tokens / 1e9:,.2f} billion"),
        ("epochs", "unknown: no shards yet" if math.isnan(found.epochs) else f"{found.epochs:,.2f}"),
        ("hours", _hours(hours)),
        ("GPU-hours", _hours(gpu_hours)),
        ("cost", cost),
    ]
    for row in rows:
        table.add_row(*row)
    return table


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.1f}" if hours >= 10 else f"{hours:.2f}"


def curve(values: tuple[float, ...], rows: int = CURVE_ROWS) -> list[str]:
    """Draw a bar for each value, in `rows` lines from the top down."""
    top = max(values) or 1.0
    heights = [round(value / top * rows * 8) for value in values]
    return [
        "  " + "".join(_EIGHTHS[min(8, max(0, height - 8 * row))] for height in heights)
        for row in range(rows - 1, -1, -1)
    ]


def as_values(found: Forecast, price: float = 0.0) -> dict[str, Any]:
    """Return the forecast as plain values, for JSON."""
    gpu_hours = found.seconds / 3600 * found.cluster.ranks
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
        "micro_batch": found.micro_batch,
        "micro_batches": found.micro_batches,
        "collective_bytes": found.moved,
        "step_seconds": found.step._asdict() | {"total": found.step.total},
        "utilisation": found.utilisation,
        "calibrated": found.calibrated,
        "steps": found.steps,
        "tokens": found.tokens,
        "epochs": None if math.isnan(found.epochs) else found.epochs,
        "hours": found.seconds / 3600,
        "gpu_hours": gpu_hours,
        "price_per_gpu_hour": price or None,
        "cost": gpu_hours * price if price else None,
        "learning_rates": list(found.rates),
        "warnings": list(found.warnings),
    }
