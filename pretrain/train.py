"""Train a run from shards to checkpoints, metrics and a summary: the training loop, from top to bottom.

Per phase: read shares of global batches with their counts -> run forward and backward over micro-batches -> take
one optimizer step -> log, evaluate, save
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from data_pipeline.errors import EXIT_STOPPED
from pretrain.checkpoint.save import Saver
from pretrain.config.settings import RunConfig, RunSettings
from pretrain.distributed.engine import Engine, build_engine
from pretrain.distributed.launch_env import SUPERVISOR
from pretrain.distributed.watchdog import Watchdog, patience
from pretrain.distributed.world import World, raise_on_all_ranks, set_arithmetic, set_threads, settle_products
from pretrain.monitoring.run_log import RunLog, is_due
from pretrain.optim.schedule import learning_rate
from pretrain.preflight.check_run import Plan, with_sources_of_shards
from pretrain.report.page import render
from pretrain.run.events import HANG, append_event
from pretrain.run.folder import SAVING
from pretrain.run.metrics_log import PROBE
from pretrain.run.time_budget import TimeBudget
from pretrain.training.before_ranks import settled
from pretrain.training.feed import (
    Feed,
    HostShare,
    model_feed,
    run_flops,
    seed_dropout,
    training_loader,
    wants_compiling,
)
from pretrain.training.guard import ROLLBACK, Guard, poisoned
from pretrain.training.progress import (
    BatchCounts,
    Position,
    StopRequest,
    is_over,
    phases_left,
    progress,
    reached,
    run_is_over,
    time_budget,
    with_batch_counts,
)
from pretrain.training.resume import begin, enter, phase_memory, roll_back, save
from pretrain.training.start import open_on_all_ranks, plan_on_rank, summary
from pretrain.training.stream_memory import StreamMemory
from pretrain.training.validation import HeldOut, Probe


@dataclass(frozen=True)
class Run:
    """Everything the loop needs in one phase."""

    config: RunConfig
    plan: Plan
    """The plan of this phase; `config` is this phase's too."""
    engine: Engine
    feed: Feed
    held_out: HeldOut
    probe: Probe
    budget: TimeBudget
    run_log: RunLog
    position: Position
    saver: Saver
    guard: Guard
    memory: StreamMemory
    stop: StopRequest
    world: World
    watchdog: Watchdog


def train(config: RunConfig, console: Console, command: str, watchdog: Watchdog) -> None:
    """Start or resume the run that `config` describes. All ranks call this.

    Raises UserError for errors the user can fix. After a signal, saves a checkpoint and exits with EXIT_STOPPED. In
    either case `watchdog` limits the rest of the process."""
    stop = StopRequest()
    world = World.from_environment()
    set_arithmetic(config)
    watchdog.stage("connecting")
    world = world.start(patience(config.run))
    set_threads(config, world)
    settle_products(world.device)
    held = None
    try:
        watchdog.stage("checking settings and shards")
        config, chosen = settled(config, world)
        config = raise_on_all_ranks(world, lambda: with_sources_of_shards(config))
        plans = raise_on_all_ranks(world, lambda: plan_on_rank(config, world))
        probe = Probe(config, plans[0], world)
        watchdog.stage("opening the run folder, from the mirror if it is empty")
        about, held = open_on_all_ranks(config, plans, world, console)
        watchdog.log_in(Path(config.run.dir), world.rank)
        if world.rank == 0:
            watchdog.on_hang = lambda why: append_event(Path(config.run.dir), HANG, step=0, text=why)
        if about["finished"]:
            if world.rank == 0:
                done = f"finished at step {about['step']:,}; nothing to do"
                console.print(f"{config.run.dir}: {done}", soft_wrap=True)
            return
        summary(config, plans, world, console, chosen)
        position = run_phases(config, plans, probe, about["id"], world, stop, console, command, watchdog)
        stopped = not (run_is_over(plans, position) or reached(config.run.stop_after, position))
        watchdog.stage("writing the report")
        if world.rank == 0:
            if stopped:
                again = "rerun the same command to resume"
                console.print(f"stopped at step {position.step:,}; {again}", soft_wrap=True)
            draw_report(Path(config.run.dir), console)
    finally:
        # after a rank has failed, NCCL may wait forever for its collectives
        watchdog.stage("leaving the other ranks")
        world.stop()
        if held is not None:
            held.close()
    if stopped:
        raise SystemExit(stopped_code(config.run, os.environ))


def stopped_code(run: RunSettings, environment: Mapping[str, str]) -> int:
    """Return the exit code of a rank that a signal has ended: that of the settings, but EXIT_STOPPED beneath
    `maskmill train` itself, which waits for it, and ends with the one of the settings."""
    return EXIT_STOPPED if SUPERVISOR in environment else run.stopped_exit_code


def run_phases(
    config: RunConfig,
    plans: list[Plan],
    probe: Probe,
    run_id: str,
    world: World,
    stop: StopRequest,
    console: Console,
    command: str,
    watchdog: Watchdog,
) -> Position:
    """Train phase by phase from the newest checkpoint, and return the position reached."""
    watchdog.stage("building the model and the engine")
    # init_from or the teacher may be a folder that some node cannot see
    model = raise_on_all_ranks(world, lambda: plans[0].objective.fresh_model(plans[0].index.vocabulary))
    engine = build_engine(model, config, world)
    position, resumed = begin(config, plans, engine, world, console, watchdog)
    watchdog.stage("opening the run log and W&B")
    guard = Guard(config, position, world, engine.precision)
    wanted = raise_on_all_ranks(
        world,
        lambda: wants_compiling(config, world.device, engine.precision, run_flops(plans)),
    )
    compiled = all(world.gather(wanted))  # some node may lack a compiler
    with (
        RunLog(config, plans, engine, world, console, command, run_id) as run_log,
        Saver(config, world, console, position.step, run_log.saved, run_log.failed_save) as saver,
    ):
        watchdog.on_hang = run_log.hangs if world.rank == 0 else None
        shared = (run_log, position, saver, guard)
        for plan in phases_left(plans, position, config.run.stop_after):
            watchdog.stage("preparing the phase, compiling")
            enter(plan, engine, position, world, partial(console.print, soft_wrap=True, markup=False))
            run_log.enter(plan, position)
            now, memory = plan.phase.config, phase_memory(plan, resumed, world)
            feed = model_feed(plan, engine, world, compiled, memory, console)
            watchdog.stage("reading held-out examples")
            held_out, budget = HeldOut(plan, now, world), time_budget(plan, position, world)
            run = Run(
                now, plan, engine, feed, held_out, probe, budget, *shared, memory, stop, world, watchdog
            )
            loop(run)
        done = run_is_over(plans, position)
        watchdog.stage("finishing the last checkpoint and its copy")
        saver.finish(for_good=done)
        ended_as_asked = done or reached(config.run.stop_after, position)
        run_log.ended("finished" if done else "stopped", 0 if ended_as_asked else EXIT_STOPPED)
        watchdog.stage("closing the run log and W&B")
    # no rank exits while another still connects: there may have been no steps left to run
    world.gather(None)
    return position


def draw_report(folder: Path, console: Console) -> None:
    """Render the report and print its path, or why it failed: the run is saved either way."""
    try:
        console.print(f"report: {render(folder)}", soft_wrap=True)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        console.print(f"maskmill: WARNING: no report: {why}", soft_wrap=True, markup=False)


def loop(run: Run) -> None:
    """Step until the phase ends, run.stop_after is reached, or a stop is requested."""
    config, run_log, position, saver = run.config, run.run_log, run.position, run.saver
    phase, budget, watchdog = run.plan.phase, run.budget, run.watchdog
    with (
        training_loader(run.plan, run.feed, position, run.world) as loader,
        run.feed.ahead(iter(loader)) as shares,
        watchdog.steps(),
    ):
        if position.batch == 0 and not run_log.has_evaluation(0):  # evaluate the starting weights
            run_log.evaluation(position, run.held_out.evaluate)
            watchdog.feed()
        take_probe(run)
        first_checkpoint(run)
        steps = with_batch_counts(shares, run.world, run.stop, run.plan.objective, budget)
        while not (is_over(phase, position) or reached(config.run.stop_after, position)):
            watchdog.feed()
            run_log.pace.start()
            budget.start()
            share, counts = next(steps)
            if counts.stop:
                break
            rate = learning_rate(progress(phase, position, counts), config.optim.lr, config.schedule)
            run.engine.set_lr(rate, peak=config.optim.lr)
            accepted = compute(run, share, counts)
            applied = bool(counts.examples) and run.engine.step(keep_scale=not accepted)
            consumed(run, applied, counts)
            if not applied:
                continue
            ends = is_over(phase, position)
            run_log.step(position, counts, rate)
            budget.stop()
            held_out_loss = None
            if is_due(position.step, config.train.eval_every, ends):
                watchdog.feed()
                held_out_loss = run_log.evaluation(position, run.held_out.evaluate)
            take_probe(run)
            ends = ends or reached(config.run.stop_after, position)
            if is_due(position.step, config.train.checkpoint_every, ends):
                watchdog.feed()
                checkpoint(run, rate, held_out_loss)
        watchdog.feed()
        saver.wait()
        if position.step > saver.saved:  # stopped between two saves, or the last save failed
            checkpoint(run, run.engine.lr)
        saver.finish()


def compute(run: Run, share: HostShare, counts: BatchCounts) -> bool:
    """Run forward and backward over this rank's micro-batches, adding empty ones where other ranks have more.
    Return whether the guard accepts the batch; if not, its gradient is NaN, which no rank applies."""
    accepted = True
    for number, micro_batch in enumerate(run.feed(share, counts.micro_batches)):
        seed_dropout(run.config.run.seed, run.position.phase_batch + share.batch, run.world.rank, number)
        with run.run_log.pace.forward(micro_batch.tokens):
            terms, memory = run.engine(micro_batch, run.memory.read(micro_batch))
        run.memory.write(micro_batch, memory)
        # sums over the counts of the whole global batch, times W: DeepSpeed averages gradients over the ranks
        loss = sum(
            term.sum * (term.weight * run.world.size / max(counts.terms[name], 1))
            for name, term in terms.items()
        )
        run.guard.add(loss)
        last = number == counts.micro_batches - 1
        accepted = not last or run.guard.accepts()
        run.engine.backward(loss if accepted else poisoned(loss), last=last)
        run.run_log.meter.add(terms)
    return accepted


def consumed(run: Run, applied: bool, counts: BatchCounts) -> None:
    """Count a consumed batch. If it was not applied, skip it, roll back or end the run, and log which."""
    position, run_log, guard = run.position, run.run_log, run.guard
    position.elapsed = run.budget.elapsed
    size = run.plan.sizes.at(position.batch_of_phase)
    position.advance(applied, counts, missing=size - counts.examples)
    run_log.meter.end_step(applied)
    for line in counts.damage:
        run_log.event("damaged", position, line)
    if applied:
        guard.accepted(whole=all(counts.terms.values()))
        run.memory.commit()
        return
    run.memory.discard()
    action, why = guard.refused(position, empty=not counts.examples)
    run_log.event(action, position, why)
    if action == ROLLBACK:
        run.budget.stop()
        run.saver.wait()
        roll_back(
            run.plan,
            run.engine,
            position,
            run.memory,
            run.world,
            lambda line: run_log.event(ROLLBACK, position, line),
        )
        run.saver.rolled_back(position.step)
        guard.rolled_back(position)
        run_log.rolled_back(position)


def take_probe(run: Run) -> None:
    """Score the model on the task of train.probe, if that is due at this step and metrics.jsonl lacks it."""
    step, phase = run.position.step, run.plan.phase
    due = step == 0 or is_due(step, run.config.train.probe_every, is_over(phase, run.position))
    if run.probe.name and due and not run.run_log.has_evaluation(step, PROBE):
        run.watchdog.feed()
        run.run_log.evaluation(run.position, run.probe.evaluate, PROBE)
        run.watchdog.feed()


def first_checkpoint(run: Run) -> None:
    """Save a checkpoint before the first step if a rollback may need one, or if there is no step."""
    if run.position.batch == 0 and (run.guard.may_roll_back or run.plan.phase.last == 0):
        save(run.plan, run.engine, run.position, run.memory, run.world, run.saver)
        run.saver.finish()


def checkpoint(run: Run, rate: float, held_out_loss: float | None = None) -> None:
    """Start saving the run at this step."""
    run.run_log.heartbeat.write(run.position.step, SAVING)
    run.run_log.flush(run.position, rate)  # so that a resumed run logs the same lines as an uninterrupted one
    save(run.plan, run.engine, run.position, run.memory, run.world, run.saver, held_out_loss)
