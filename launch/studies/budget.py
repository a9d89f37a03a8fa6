"""State what a study costs before it starts, and time the steps of arms that are compared at equal time.

A budget has runs, steps and minutes on this machine; a plan has hours and money on GPUs.
"""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import torch

from data_pipeline.errors import EXIT_STOPPED, UserError
from launch.studies.read import (
    Place,
    StepTime,
    Stopped,
    last_line,
    maskmill,
    overrides_of,
    read_step_times,
    run_of,
    step_time_key,
    trains,
    write_step_times,
)
from pretrain.config.settings import RunConfig
from pretrain.objectives.registry import load
from pretrain.preflight.forecast import forecast_phases, text_of
from pretrain.preflight.step_time import Cluster, peak_flops
from pretrain.run.human import duration
from pretrain.run.machine import machine_name
from pretrain.run.metrics_log import read_metrics
from pretrain.studies.design import Design
from pretrain.studies.measured import Cell, Measured

# State what is left of a study, and what it costs here or on GPUs.


CPU_SHARE = 0.45
"""Assumed share of the speed of matrix products that training reaches on a CPU: what a model of 2 layers of 128 reaches
on one thread."""


class Budget(NamedTuple):
    """What is left to do."""

    runs: int
    """That train."""
    steps: int
    tokens: float
    seconds: float
    """Expected wall time of what is left."""
    at_once: int
    """Runs at a time."""
    source: str
    """Where the time is from."""
    fine_tunings: int
    """Fine-tunings and scorings, whose time is known only when the first is done."""

    def __str__(self) -> str:
        scored = f"; {self.fine_tunings} scorings of tasks beside that" if self.fine_tunings else ""
        order = f"{self.at_once} at a time" if self.at_once > 1 else "one after the other"
        return (
            f"{self.runs} runs to train, {self.steps:,} steps in all, {self.tokens:,.0f} tokens: about "
            f"{duration(self.seconds) or 'no time'} {order} ({self.source}){scored}."
        )


def all_cells(design: Design) -> list[Cell]:
    """Return the runs of a study with as many as a grid needs: which values further seeds have is known later."""
    further = [Cell(arm, seed, _tuned(design)[0]) for arm in design.arms for seed in design.seeds[1:]]
    return [*first_cells(design), *further]


def first_cells(design: Design) -> list[Cell]:
    """Return the runs of the first seed: every point of the grid for each arm that trains."""
    return [
        Cell(name, design.seeds[0], tuned)
        for name, arm in design.arms.items()
        for tuned in ([()] if arm.model_of else _tuned(design))
    ]


def _tuned(design: Design) -> list[tuple[tuple[str, object], ...]]:
    """Return every combination of tuned values."""
    points: list[tuple[tuple[str, object], ...]] = [()]
    for key, grid in design.tune.items():
        points = [(*point, (key, value)) for point in points for value in grid]
    return points


def budget_of(design: Design, place: Place, found: Mapping[Cell, Measured]) -> Budget:
    """Return what is left of a study: from the time of finished runs of an arm where there are some, else from the
    operations and the speed of this machine's matrix products."""
    left = [cell for cell in all_cells(design) if cell not in found]
    training = [cell for cell in left if trains(design, cell, place)]
    peak, steps, tokens, seconds = 0.0, 0, 0.0, 0.0
    took = {one.arm: one.seconds for one in found.values()}
    for cell in training:
        for phase in run_of(design, cell, place.folder, place.threads).phases:
            steps += phase.train.steps
            tokens += phase.train.steps * phase.train.global_batch * text_of(phase).length
        if cell.arm in took:
            seconds += took[cell.arm]
            continue
        peak = peak or _peak(place.threads)
        timed = run_of(design, _timed_by(design, cell), place.folder, place.threads).phases
        seconds += sum(phase.train.steps * _step_flops(phase) for phase in timed) / (peak * CPU_SHARE)
    source = (
        "as long as the runs before"
        if took
        else f"if training reaches {CPU_SHARE:.0%} of this machine's matrix products"
    )
    scorings = len(left) * sum(scoring.seeds for scoring in design.evaluate)
    at_once = min(max(1, len(os.sched_getaffinity(0)) // place.threads), max(1, len(training)))
    return Budget(len(training), steps, tokens, seconds / at_once, at_once, source, scorings)


def _timed_by(design: Design, cell: Cell) -> Cell:
    """Return the run that decides how long one takes: at equal time the reference's."""
    return cell._replace(arm=design.reference) if design.equal_time else cell


def _step_flops(config: RunConfig) -> float:
    text, batch = text_of(config), config.train.global_batch
    tokens, squares, masked = (round(batch * n) for n in (text.length, text.square, text.masked))
    return load(config).flops(text.vocabulary, tokens=tokens, squares=squares, masked=masked)


def _peak(threads: int) -> float:
    """Measure this machine's matrix products on the threads of one run."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return peak_flops(torch.device("cpu"), 0.0)
    finally:
        torch.set_num_threads(before)


def plan_lines(design: Design, place: Place, cluster: Cluster, price_per_hour: float) -> list[str]:
    """Return what each arm takes on GPUs, and all of it in hours and, for a price, money."""
    lines, total = [], 0.0
    cells = all_cells(design)
    for name, arm in design.arms.items():
        own = [cell for cell in cells if cell.arm == name and trains(design, cell, place)]
        if not own:
            lines.append(
                f"{design.label(name)}: takes the model of {design.label(arm.model_of) if arm.model_of else '--model'}"
            )
            continue
        config = run_of(design, _timed_by(design, own[0]), place.folder, place.threads).config
        phases = [forecast for _, forecast in forecast_phases(config, cluster)]
        seconds, tokens = sum(one.seconds for one in phases), sum(one.tokens for one in phases)
        hours = seconds * len(own) / 3600
        total += hours
        as_long = design.equal_time and name != design.reference
        what = f"as {design.label(design.reference)}" if as_long else f"{tokens:,.0f} tokens each"
        lines.append(f"{design.label(name)}: {len(own)} runs of {duration(seconds)}, {what}")
    gpus = f"{cluster.ranks} x {cluster.gpu.name}"
    cost = (
        f", {total * cluster.ranks * price_per_hour:,.2f} at {price_per_hour:g} an hour and GPU"
        if price_per_hour
        else ""
    )
    lines.append(f"in all {total:,.1f} hours of {gpus}{cost}; not calibrated on such a machine")
    scorings = len(cells) * sum(scoring.seeds for scoring in design.evaluate)
    if scorings:
        lines.append(f"beside that {scorings} scorings of tasks, whose time is not forecast")
    return lines


# Time a step of every arm of a study that compares at equal time, before its runs begin. Arms take turns in short
# runs, round after round, so that whatever else the machine does meets all of them.


ROUNDS, STEPS, EVERY = 3, 200, 20
"""Short runs of an arm; steps of each; and steps of an interval, whose median is one measurement."""


def time_arms(design: Design, place: Place, say: Callable[[str], None]) -> None:
    """Time the arms that have not been timed, the reference beside them, and keep that in the study's folder. Raises
    UserError for a run that fails, Stopped where a signal ends one."""
    known = read_step_times(place.folder)
    training = [arm for arm in design.arms if trains(design, Cell(arm, 1), place)]
    others = [arm for arm in training if arm != design.reference]
    new = [arm for arm in others if step_time_key(design, arm) not in known]
    if not design.equal_time or not new:
        return
    say(f"timing a step of {len(new) + 1} arms, {ROUNDS} short runs of each in turns")
    arms = [design.reference, *new]
    rounds: dict[str, list[list[float]]] = {arm: [] for arm in arms}
    for _ in range(ROUNDS):
        for arm in arms:
            rounds[arm].append(_short_run(design, arm, place))
    times = {arm: quiet_step(rounds[arm]) for arm in arms}
    where = (machine_name(), datetime.now(UTC).strftime("%Y-%m-%d"))
    for arm in new:
        known[step_time_key(design, arm)] = StepTime(arm, times[arm], times[design.reference], *where)
    write_step_times(place.folder, known)


def quiet_step(rounds: Sequence[Sequence[float]]) -> float:
    """Return the milliseconds of a step on a quiet machine, from those of each interval in each round: the shortest
    round of every interval, since all rounds train on the same batches and other work can only add to their time; and
    the mean of these over intervals.

    >>> quiet_step([[20.0, 30.0], [24.0, 22.0]])
    21.0
    """
    shortest = [min(times) for times in zip(*rounds, strict=True)]
    return sum(shortest) / len(shortest)


def _short_run(design: Design, arm: str, place: Place) -> list[float]:
    """Train for a few steps and remove the run; the milliseconds of a step in each interval but the first, in which
    caches fill."""
    folder = place.folder / "runs" / f"{arm}-timed"
    shutil.rmtree(folder, ignore_errors=True)
    run = run_of(design, Cell(arm, design.seeds[0]), place.folder, place.threads)
    short = {
        "run.dir": str(folder),
        "run.stop_after": min(STEPS, run.config.train.steps),
        "train.log_every": EVERY,
        "train.eval_every": 0,
        "train.checkpoint_every": 0,
    }
    log = place.folder / "logs" / f"{arm}-timed.log"
    code, output = maskmill(["train", run.recipe, *run.overrides, *overrides_of(short)], log)
    if code == EXIT_STOPPED:
        raise Stopped(f"{arm}-timed")
    if code:
        raise UserError(f"a short run failed: {last_line(output)}", where=f"{arm} ({log})")
    times = _step_times(folder)
    shutil.rmtree(folder, ignore_errors=True)
    if not times:
        raise UserError(
            f"too few steps to time: {run.config.train.steps}",
            where=f"study {design.name}",
            expected=f"train.steps of {2 * EVERY} or more with equal_time",
        )
    return times


def _step_times(folder: Path) -> list[float]:
    lines = [line for line in read_metrics(folder) if line.get("kind") == "train"]
    return [float(line["step_ms"]) for line in lines if "step_ms" in line][1:]


def steps_by_arm(design: Design, place: Place) -> str:
    """Return in words how many steps each arm has and how long one takes; empty where steps are equal."""
    known = read_step_times(place.folder) if design.equal_time else {}
    parts = []
    for arm in design.arms:
        if (time := known.get(step_time_key(design, arm))) and arm != design.reference:
            steps = run_of(design, Cell(arm, 1), place.folder, place.threads).config.train.steps
            share = f"{time.step_ms / time.reference_ms:.2f} times as long a step"
            parts.append(f"{design.label(arm)} {steps:,} ({share})")
    if not parts:
        return ""
    reference = run_of(design, Cell(design.reference, 1), place.folder, place.threads).config.train.steps
    return f"Steps at equal time: {'; '.join([f'{design.label(design.reference)} {reference:,}', *parts])}."
