"""Time a step of every arm of a study that compares at equal time, before its runs begin.

Arms take turns in short runs, round after round, so that whatever else the machine does meets all of them.
"""

import shutil
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from data_pipeline.errors import UserError
from launch.ranks import STOPPED
from launch.studies.place import Place, Stopped, last_line, maskmill, trains
from launch.studies.read import overrides_of, run_of
from launch.studies.step_times import StepTime, read_step_times, step_time_key, write_step_times
from pretrain.run.machine import machine_name
from pretrain.run.metrics_log import read_metrics
from pretrain.studies.design import Design
from pretrain.studies.measured import Cell

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
    if code == STOPPED:
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
