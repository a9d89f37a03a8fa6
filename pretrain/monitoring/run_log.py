"""Write the figures and events of a run to the files of its folder, pass them to the tracker, and show them.

metrics.jsonl gets a line at each log step and evaluation, through the tracker; summary.json has the newest figures;
events.jsonl gets the start, the checkpoints and the end of each attempt, and what disturbs the run. The figures of a
training line cover the whole global batch, averaged over the steps since the last line.
"""

import math
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from rich.console import Console

from data_pipeline.errors import EXIT_FAILED, EXIT_USER_ERROR, UserError, redact, redact_settings
from pretrain.checkpoint.padding import real_shapes
from pretrain.config.settings import RunConfig
from pretrain.distributed.engine import Engine
from pretrain.distributed.watchdog import hang_in
from pretrain.distributed.world import World, raise_on_all_ranks
from pretrain.monitoring.terminal import open_view
from pretrain.monitoring.tracker import disk_nearly_full, open_tracker
from pretrain.preflight.check_run import Plan, checkpoint_bytes
from pretrain.preflight.step_time import peak_flops, peak_source
from pretrain.run.causes import OUTLIER, cause_of
from pretrain.run.events import (
    HANG,
    NOT_SAVED,
    SPENT,
    AttemptLog,
    append_event,
    read_attempts,
    read_disturbances,
)
from pretrain.run.files import EVENTS, LOGS, objects, text_of
from pretrain.run.folder import (
    EVALUATING,
    STARTING,
    TRAINING,
    Heartbeat,
    read_summary,
    write_summary,
)
from pretrain.run.machine import machine, peak_memory
from pretrain.run.metrics_log import EVAL, TRUST, TRUST_PREFIX, in_json, read_metrics
from pretrain.run.time_budget import SHARE, SHARES, ShareLog, phases_in
from pretrain.training.guard import LossMeter
from pretrain.training.progress import BatchCounts, Position, is_over
from pretrain.training.rank_timing import Pace
from pretrain.training.validation import Figures

# Average the statistics of global batches into the figures of a line of metrics.jsonl.


class StepStats:
    """Sum accepted batches on every rank; `read` resets it. `peak`: FLOP/s of all ranks' devices, 0 if unknown."""

    def __init__(self, world: World, peak: float) -> None:
        self.meter, self.pace = LossMeter(), Pace(world.device)
        self._world, self._peak = world, peak
        self.reset()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to read."""
        return not self._counts

    def reset(self) -> None:
        """Start the time of the next line now."""
        self._counts: list[BatchCounts] = []
        self._since = time.perf_counter()

    def forget(self) -> None:
        """Drop the batches since the last line."""
        self.meter.forget()
        self.reset()

    def add(self, step: int, counts: BatchCounts) -> None:
        """Add an accepted step."""
        self._counts.append(counts)
        self.pace.lap(step, counts.waited)

    def leave_out(self, seconds: float) -> None:
        """Subtract time that was not spent training."""
        self._since += seconds

    def read(self, plan: Plan) -> dict[str, Any]:
        """Return means of losses and accuracies; `global_batch`, the examples of the newest step; tokens and examples
        per second; `mfu`, the share of the peak reached by the model's arithmetic; `fill`, the share of the
        micro-batches' token budgets that was used; maximum GB of memory over ranks; the figures of
        training/rank_timing.py. None for unknown values. All ranks call this together."""
        means = self.meter.read(self._world)
        here = (
            time.perf_counter() - self._since,
            sum(c.waited for c in self._counts),
            peak_memory(self._world.device),
        )
        seconds, waited, memory = (max(values) for values in zip(*self._world.gather(here), strict=True))
        paces, slowdowns = self.pace.read(self._world)
        tokens, squares, masked, examples, slots = (
            sum(getattr(c, name) for c in self._counts)
            for name in ("tokens", "squares", "masked", "examples", "micro_batches")
        )
        index, micro_batch = plan.index, plan.phase.config.train.micro_batch
        budget = slots * self._world.size * micro_batch * index.settings["sequence_length"]
        flops = plan.objective.flops(index.vocabulary.size, tokens=tokens, squares=squares, masked=masked)
        return {
            **means,
            "global_batch": self._counts[-1].examples,
            "tokens_per_s": tokens / seconds,
            "examples_per_s": examples / seconds,
            "mfu": flops / seconds / self._peak if self._peak else None,
            "padding_share": 0.0,  # packed: no example is padded; unused space in a micro-batch is 1 - fill
            "fill": tokens / budget,
            "data_wait_share": waited / seconds,
            **paces,
            "slowdowns": slowdowns or None,
            "memory_gb": memory,
        }


# Create the initial summary.json of an attempt from the run and its earlier attempts.


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


# Log what happens, step by step, from the start of an attempt to its end.


MOST_OF_LOG = 1 << 18
"""Bytes read at the end of each rank's log."""
MAX_SHARE = 0.9999
"""Highest share of train.minutes that is logged before the last update."""


class RunLog:
    """Keep the figures of a run. All ranks have one, since the figures are summed over ranks; only the first rank's
    writes and shows anything."""

    def __init__(
        self,
        config: RunConfig,
        plans: list[Plan],
        engine: Engine,
        world: World,
        console: Console,
        command: str,
        run_id: str,
    ) -> None:
        self.heartbeat = Heartbeat(Path(config.run.dir), world.rank == 0)
        self._config, self._plan, self._engine, self._world = config, plans[0], engine, world
        self._folder = Path(config.run.dir)
        shown = console if world.rank == 0 else Console(quiet=True)
        live = config.run.live and world.rank == 0
        self._attempt_log = AttemptLog(self._folder, writes=world.rank == 0)
        peak = sum(world.gather(peak_flops(world.device, config.monitor.peak_tflops)))
        self._step_stats = StepStats(world, peak)
        self.meter, self.pace = self._step_stats.meter, self._step_stats.pace
        self._tracker = open_tracker(
            self._folder, config.monitor, run_id, redact_settings(asdict(config)), world.rank == 0
        )
        self._left = read_summary(self._folder)  # by the previous attempt
        self._crashed = self._left.get("status") in ("running", "failed")  # it did not end properly
        self._lines = read_metrics(self._folder)  # the lines kept from earlier attempts
        self._summary = begun(config, plans, engine, world, command, self._left, self._lines)
        headline, phases = plans[-1].objective.headline, phases_in(self._summary)
        self._view = open_view(shown, live, self._folder, plans[-1].phase.last, phases, headline)
        self._summary["peak_tflops"] = peak / 1e12
        self._started = time.perf_counter()
        self._before = float(self._summary.get("seconds", 0.0))
        self._logged = {(str(line.get("kind")), line.get("step", 0)) for line in self._lines}
        self._step: int | None = None
        self._exit_code = EXIT_FAILED
        self._shares, self._last_phase = ShareLog(), plans[-1].phase.number

    def __enter__(self) -> "RunLog":
        self._summary |= {"status": "running"}
        self._write_summary()
        step = int(self._summary.get("step", 0))
        self.heartbeat.write(step, STARTING)
        if self._world.rank == 0 and (hung := self._hung_before()):
            self._log_event(HANG, step, hung)
            self._tracker.alert(HANG, f"resuming from step {step:,}: {hung}")
        elif self._crashed:
            words = f"the attempt before ended without a save; resuming from step {step:,}"
            self._tracker.alert("restart", words)
        self._view.__enter__()
        self._step_stats.reset()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._view.__exit__(kind, error, trace)
        if kind is not None:
            self._summary |= {"status": "failed", "error": redact(f"{kind.__name__}: {error}")[:500]}
            self._exit_code = EXIT_USER_ERROR if issubclass(kind, UserError) else EXIT_FAILED
            self._tracker.alert("failed", self._summary["error"])
        self._summary["finished"] = now()
        self._write_summary()
        if self._step is not None:
            self._attempt_log.ended(self._step, self._summary, self._exit_code)
        self._tracker.close(self._summary["status"])

    def enter(self, plan: Plan, position: Position) -> None:
        """Start this phase."""
        self._plan, phase = plan, plan.phase
        self.heartbeat.write(position.step, STARTING)  # compiling may take minutes
        self._shares = ShareLog(position.batch)
        if self._step is None:  # the first of this attempt
            self._attempt_log.started(position.step, self._summary, self._left)
            self._view.begin(position.step, self._lines)
            self._lines.clear()
        self._step = position.step
        steps = phase.config.train.steps
        self._bounds(position, last=position.phase_step + steps if steps else None)
        self._summary["data"] = plan.index.statistics
        if phase.name:
            self._summary["phase"] = phase.name
        self._view.enter(phase)
        self._write_summary()
        self.pace.new_phase()
        self._said: set[str] = set()
        self._step_stats.reset()

    def step(self, position: Position, counts: BatchCounts, lr: float) -> None:
        """Count an accepted step, and write a line at a log step. All ranks call this."""
        self._step_stats.add(position.step, counts)
        self._shares.add(position.batch - 1, counts.budget.share)
        self.heartbeat.write(position.step, TRAINING)
        self._step = position.step
        self._view.step(position.step, counts.budget.share)
        if is_over(self._plan.phase, position):
            self._bounds(position, last=position.step)
        if is_due(
            position.step, self._plan.phase.config.train.log_every, is_over(self._plan.phase, position)
        ):
            self.flush(position, lr)
        every = self._config.monitor.trust_ratios_every
        if every and position.step % every == 0 and self._world.rank == 0:
            self._log_trust_ratios(position)

    def flush(self, position: Position, lr: float) -> None:
        """Write a line of what is not yet written, if anything. All ranks call this."""
        if not self._step_stats.empty:
            self._log(position, lr)

    def has_evaluation(self, step: int, kind: str = EVAL) -> bool:
        """Return whether metrics.jsonl has figures of this step from an earlier attempt. All ranks call this."""
        return any(self._world.gather((kind, step) in self._logged))

    def evaluation(
        self, position: Position, evaluate: Callable[[Engine], Figures], kind: str = EVAL
    ) -> float | None:
        """Evaluate, and write the figures of this step in a line of this kind; the time it takes is not training time.
        Returns the held-out loss, None if there is none."""
        started = time.perf_counter()
        self.heartbeat.write(position.step, EVALUATING)
        with self._view.busy("evaluating"):
            figures = evaluate(self._engine)
        known = in_json(figures)
        if figures:
            taken = {f"{kind}_seconds": time.perf_counter() - started}
            self._tracker.log({"kind": kind, "step": position.step, **self._phase(), **known, **taken})
            self._summary |= known
            self._write_summary()
            (self._view.held_out if kind == EVAL else self._view.probed)(position.step, figures)
        self._step_stats.leave_out(time.perf_counter() - started)
        return known.get("held_out_loss")

    def event(self, kind: str, position: Position, text: str) -> None:
        """Report a disturbance of the run, and append it to events.jsonl, which no later attempt cuts."""
        self._log_event(kind, position.step, text, batch=position.batch - 1)
        cause = "damaged" if kind == "damaged" else cause_of(text)
        if cause != "nan" or self._engine.precision != "fp16":  # fp16 finds its loss scale by overflows
            self._tracker.alert(cause, text)
        self._view.disturbed(kind, text)

    def failed_save(self, kind: str, step: int, why: str) -> None:
        """Record a checkpoint that could not be written, or copied to the mirror; the terminal has the line already.
        Called by the writer's thread."""
        self._log_event(kind, step, why)
        self._tracker.alert("not saved" if kind == NOT_SAVED else "not mirrored", f"step {step:,}: {why}")

    def hangs(self, why: str) -> None:
        """Record that this run hangs and is about to be ended. Called by the watchdog's thread."""
        step = self._step or int(self._summary.get("step", 0))
        self._log_event(HANG, step, why)
        self._tracker.alert(HANG, f"step {step:,}: {why}")

    def saved(self, step: int, seconds: float, blocked: float, size: int) -> None:
        """Record a completed checkpoint, this many seconds after its start; training waited for `blocked` of them.
        Called by the writer's thread."""
        self._attempt_log.saved(step, seconds, blocked, size)
        self._view.saved(step, seconds, size)

    def rolled_back(self, position: Position) -> None:
        """Forget the steps after this position. All ranks call this; if the first cannot write, all end."""
        raise_on_all_ranks(self._world, lambda: self._tracker.cut(position.step))
        self._logged = {(kind, step) for kind, step in self._logged if step <= position.step}
        self._view.rolled_back(position.step)
        self._step_stats.forget()

    def ended(self, status: str, exit_code: int) -> None:
        """Record how this attempt ended: finished or stopped."""
        self._summary["status"], self._exit_code = status, exit_code

    def _log(self, position: Position, lr: float) -> None:
        figures, index = self._step_stats.read(self._plan), self._plan.index
        line = {
            "kind": "train",
            "step": position.step,
            "batch": position.batch,
            **self._phase(),
            "epoch": (position.examples - position.phase_examples) / index.train.examples,
            "lr": lr,
            "grad_norm": self._engine.grad_norm,
            "trust_ratio": self._engine.mean_trust_ratio(),
            **figures,
            **self._budget(position),
            "skipped_batches": len(position.skipped),
            "damaged_examples": position.damaged,
            "seconds": self._before + time.perf_counter() - self._started,
        }
        line = in_json(line)
        self._tracker.log(line)
        self._summary |= {key: value for key, value in line.items() if key != "kind"}
        self._write_summary()
        self._view.logged(line)
        for words in figures["slowdowns"] or ():
            self._say_once(words, position.step)
            self._tracker.alert(cause_of(words), words)
        size = checkpoint_bytes(self._config, self._summary["parameters"])
        self._tracker.alert("disk", disk_nearly_full(self._folder, size))
        self._step_stats.reset()

    def _log_event(self, kind: str, step: int, text: str, **where: Any) -> None:
        if self._world.rank == 0:
            try:
                append_event(self._folder, kind, step=step, text=text, **where)
            except OSError as error:  # full or gone for a while: the terminal has the line
                self._view.warn(f"{self._folder / EVENTS}: {error.strerror}")

    def _hung_before(self) -> str:
        """Return how the attempt before hung, by the logs of its ranks, where it could not say so itself: the hang held
        its interpreter. Empty where it did not hang, or has said so."""
        attempts = read_attempts(self._folder)
        if not self._crashed or not attempts or attempts[-1].ended is not None:
            return ""
        since = attempts[-1].started
        if any(event.get("event") == HANG for event in read_disturbances(self._folder, since)):
            return ""
        found = [
            (at, path.stem, what)
            for path in sorted((self._folder / LOGS).glob("rank-*.log"))
            if (hang := hang_in(text_of(path, MOST_OF_LOG))) and (at := hang[0]) >= since.timestamp() - 1
            for what in hang[1:]
        ]
        return f"{max(found)[2]}, by {max(found)[1]}.log" if found else ""

    def _bounds(self, position: Position, last: int | None) -> None:
        """Record where this phase begins and ends, which is unknown in advance where phases have train.minutes."""
        set_bounds(self._summary, position, last)
        if last is not None and self._plan.phase.number == self._last_phase:
            self._summary["steps"] = last
            self._view.ends_at(last)

    def _budget(self, position: Position) -> dict[str, Any]:
        """Return the share of train.minutes that is used, and those at which the updates since the last line began."""
        seconds = 60 * self._plan.phase.config.train.minutes
        if not seconds:
            return {}
        used = 1.0 if position.spent else min(position.elapsed / seconds, MAX_SHARE)
        return {SHARE: used, SHARES: self._shares.take(position.batch)}

    def _log_trust_ratios(self, position: Position) -> None:
        """Log the trust ratios in a line of their own: one per tensor, in full float64, fetched from the device at
        once."""
        ratios = self._engine.trust_ratios()
        if ratios:
            values = torch.stack(list(ratios.values())).tolist()
            named = {f"{TRUST_PREFIX}{name}": value for name, value in zip(ratios, values, strict=True)}
            self._tracker.log(in_json({"kind": TRUST, "step": position.step, **named}))

    def _say_once(self, words: str, step: int) -> None:
        """Print a line for people; a persistent problem is reported when it begins, while every log line has it."""
        kind = words if cause_of(words) == OUTLIER else " ".join(words.split()[:2])
        if kind not in self._said:
            self._said.add(kind)
            self._view.slowdown(step, words)

    def _phase(self) -> dict[str, str]:
        return {"phase": self._plan.phase.name} if self._plan.phase.name else {}

    def _write_summary(self) -> None:
        if self._world.rank != 0:
            return
        self._summary[SPENT] = round(time.perf_counter() - self._started, 1)
        try:
            write_summary(self._folder, self._summary)
        except (OSError, UserError) as error:  # full or gone for a while: must not end the run
            self._view.warn(str(error))


def is_due(step: int, every: int, last: bool) -> bool:
    """Return whether an action done every `every` steps (0: never) and at the last step is due now."""
    return last or (every > 0 and step % every == 0)
