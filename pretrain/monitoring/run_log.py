"""Write the figures of each step to metrics.jsonl, summary.json and attempts.jsonl, and show them."""

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from rich.console import Console

from data_pipeline.errors import UserError, redact, redact_settings
from pretrain.config.settings import RunConfig
from pretrain.distributed.engine import Engine
from pretrain.distributed.watchdog import hang_in
from pretrain.distributed.world import World, raise_on_all_ranks
from pretrain.monitoring.step_stats import StepStats
from pretrain.monitoring.summary import begun, now, set_bounds
from pretrain.monitoring.tracker import open_tracker
from pretrain.monitoring.view import open_view
from pretrain.monitoring.wandb.alerts import cause_of, disk_nearly_full
from pretrain.preflight.check_run import BYTES_PER_WEIGHT, DISK_MARGIN, Plan
from pretrain.preflight.step_time import peak_flops
from pretrain.run.files import text_of
from pretrain.run.folder import (
    EVALUATING,
    EVENTS,
    HANG,
    NOT_SAVED,
    SPENT,
    STARTING,
    TRAINING,
    AttemptLog,
    Heartbeat,
    events_since,
    log_event,
    read_attempts,
    read_summary,
    write_summary,
)
from pretrain.run.metrics_log import EVAL, TRUST, TRUST_PREFIX, in_json, read_metrics
from pretrain.run.time_budget import SHARE, SHARES, ShareLog, phases_in
from pretrain.training.progress import BatchCounts, Position, is_over
from pretrain.training.validation import Figures

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
            self._tracker.alert("failed", self._summary["error"])
        self._summary["finished"] = now()
        self._write_summary()
        if self._step is not None:
            self._attempt_log.ended(self._step, self._summary)
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
        self._shares.add(position.batch - 1, counts.ahead.share)
        self.heartbeat.write(position.step, TRAINING)
        self._step = position.step
        self._view.step(position.step, counts.ahead.share)
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

    def ended(self, status: str) -> None:
        """Record how this attempt ended: finished or stopped."""
        self._summary["status"] = status

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
        self._view.figures(line)
        for words in figures["slowdowns"] or ():
            self._say_once(words, position.step)
            self._tracker.alert(cause_of(words), words)
        size = self._summary["parameters"] * BYTES_PER_WEIGHT * DISK_MARGIN
        self._tracker.alert("disk", disk_nearly_full(self._folder, size))
        self._step_stats.reset()

    def _log_event(self, kind: str, step: int, text: str, **where: int) -> None:
        if self._world.rank == 0:
            try:
                log_event(self._folder, kind, step, text, **where)
            except OSError as error:  # full or gone for a while: the terminal has the line
                self._view.warn(f"{self._folder / EVENTS}: {error.strerror}")

    def _hung_before(self) -> str:
        """Return how the attempt before hung, by the logs of its ranks, where it could not say so itself: the hang held
        its interpreter. Empty where it did not hang, or has said so."""
        attempts = read_attempts(self._folder)
        if not self._crashed or not attempts or attempts[-1].ended is not None:
            return ""
        since = attempts[-1].started
        if events_since(self._folder, HANG, since):
            return ""
        found = [
            (at, path.stem, what)
            for path in sorted((self._folder / "logs").glob("rank-*.log"))
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
        kind = words if words.startswith("an outlier") else " ".join(words.split()[:2])
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
