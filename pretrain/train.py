"""Train a run from shards to checkpoints, metrics and a summary: the training loop, from top to bottom.

Per phase: read shares of global batches with their counts -> run forward and backward over micro-batches -> take
one optimizer step -> log, evaluate, save
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from pretrain.checkpoint.background_save import Saver
from pretrain.config.phases import total_steps
from pretrain.config.settings import RunConfig
from pretrain.distributed.determinism import seed_dropout, set_threads
from pretrain.distributed.engine import Engine, build_engine
from pretrain.distributed.watchdog import Watchdog, patience, rank_log
from pretrain.distributed.world import World, raise_on_all_ranks
from pretrain.monitoring.run_log import RunLog, is_due
from pretrain.optim.schedule import learning_rate
from pretrain.preflight.check_run import Plan, check_run
from pretrain.preflight.startup import summary
from pretrain.report.html import render
from pretrain.run.heartbeat import SAVING
from pretrain.training import compile_model
from pretrain.training.batch_counts import BatchCounts, StopRequest, with_batch_counts
from pretrain.training.device_feed import Feed, HostShare, model_feed, training_loader
from pretrain.training.loss_guard import ROLLBACK, Guard, poisoned
from pretrain.training.resume import Position, begin, enter, phase_memory, roll_back, save
from pretrain.training.start_run import open_on_all_ranks
from pretrain.training.stream_memory import StreamMemory
from pretrain.training.validation import HeldOut

STOPPED = 3
"""Exit code after a signal: the run is saved, and the same command resumes it."""


@dataclass(frozen=True)
class Run:
    """Everything the loop needs in one phase."""

    config: RunConfig
    plan: Plan
    """The plan of this phase; `config` is this phase's too."""
    engine: Engine
    feed: Feed
    held_out: HeldOut
    run_log: RunLog
    position: Position
    saver: Saver
    guard: Guard
    memory: StreamMemory
    stop: StopRequest
    world: World


def train(config: RunConfig, console: Console, command: str) -> None:
    """Start or resume the run that `config` describes. All ranks call this.

    Raises UserError for errors the user can fix. After a signal, saves a checkpoint and exits with STOPPED."""
    stop = StopRequest()
    world = World.from_environment()
    set_threads(config, world)
    world = world.start(patience(config))
    held, begun = None, False
    try:
        plans = raise_on_all_ranks(world, lambda: check_run(config, world.size))
        about, held = open_on_all_ranks(config, plans, world, console)
        begun = True
        last, until = total_steps(config), last_step(config)
        if about["finished"]:
            if world.rank == 0:
                done = f"finished at step {last:,}; nothing to do"
                console.print(f"{config.run.dir}: {done}", soft_wrap=True)
            return
        summary(config, plans, world, console)
        step = run_phases(config, plans, about["id"], world, stop, console, command)
        if world.rank == 0:
            if step < until:
                again = "rerun the same command to resume"
                console.print(f"stopped at step {step:,}; {again}", soft_wrap=True)
            draw_report(Path(config.run.dir), console)
    finally:
        # after a rank has failed, NCCL may wait forever for its collectives
        with Watchdog(config.run.step_limit if begun else 0, rank_log(config, world)):
            world.stop()
        if held is not None:
            held.close()
    if step < until:
        raise SystemExit(STOPPED)


def run_phases(
    config: RunConfig,
    plans: list[Plan],
    run_id: str,
    world: World,
    stop: StopRequest,
    console: Console,
    command: str,
) -> int:
    """Train phase by phase from the newest checkpoint, and return the last step reached."""
    # init_from or the teacher may be a folder that some node cannot see
    model = raise_on_all_ranks(world, lambda: plans[0].objective.fresh_model(plans[0].index.vocabulary))
    engine = build_engine(model, config, world)
    position, resumed = begin(config, plans, engine, world, console)
    guard = Guard(config, position, world, engine.precision)
    flops = sum(plan.phase.config.train.steps * plan.step_flops(plan.phase.config) for plan in plans)
    wanted = raise_on_all_ranks(
        world, lambda: compile_model.wanted(config, world.device, engine.precision, flops)
    )
    compiled = all(world.gather(wanted))  # some node may lack a compiler
    with (
        RunLog(config, plans, engine, world, console, command, run_id) as run_log,
        Saver(config, world, console, position.step, run_log.saved) as saver,
    ):
        for plan in phases_left(plans, position, last_step(config)):
            enter(plan, engine, position)
            run_log.enter(plan, position)
            now, memory = plan.phase.config, phase_memory(plan, resumed, world)
            feed = model_feed(plan, engine, world, compiled, memory, console)
            held_out = HeldOut(plan, now, world)
            loop(Run(now, plan, engine, feed, held_out, run_log, position, saver, guard, memory, stop, world))
        done = position.step >= total_steps(config)
        saver.finish(for_good=done)
        run_log.ended("finished" if done else "stopped")
    # no rank exits while another still connects: there may have been no steps left to run
    world.gather(None)
    return position.step


def draw_report(folder: Path, console: Console) -> None:
    """Render the report and print its path, or why it failed: the run is saved either way."""
    try:
        console.print(f"report: {render(folder)}", soft_wrap=True)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        console.print(f"maskmill: WARNING: no report: {why}", soft_wrap=True, markup=False)


def phases_left(plans: list[Plan], position: Position, last: int) -> Iterator[Plan]:
    """Yield the unfinished phases up to step `last`, each after the previous one has finished."""
    for plan in plans:
        if plan.phase.first <= position.step < min(plan.phase.last, last):
            yield plan


def loop(run: Run) -> None:
    """Step until the phase ends, run.stop_after is reached, or a stop is requested."""
    config, run_log, position, saver = run.config, run.run_log, run.position, run.saver
    phase = run.plan.phase
    last = min(phase.last, config.run.stop_after or phase.last)
    with (
        training_loader(run.plan, run.feed, position, run.world) as loader,
        run.feed.ahead(iter(loader)) as shares,
        Watchdog(config.run.step_limit, rank_log(config, run.world)) as watchdog,
    ):
        if position.batch == 0 and not run_log.has_evaluation(0):  # evaluate the starting weights
            run_log.evaluation(position, run.held_out.evaluate)
            watchdog.feed()
        first_checkpoint(run)
        steps = with_batch_counts(shares, run.world, run.stop, run.plan.objective)
        while position.step < last:
            watchdog.feed()
            run_log.pace.start()
            share, counts = next(steps)
            if counts.stop:
                break
            rate = learning_rate(
                position.step - phase.first, config.optim.lr, config.train.steps, config.schedule
            )
            run.engine.set_lr(rate)
            accepted = compute(run, share, counts)
            applied = bool(counts.examples) and run.engine.step(keep_scale=not accepted)
            consumed(run, applied, counts)
            if not applied:
                continue
            run_log.step(position, counts, rate)
            held_out_loss = None
            if is_due(position.step, config.train.eval_every, phase.last):
                watchdog.feed()
                held_out_loss = run_log.evaluation(position, run.held_out.evaluate)
            if is_due(position.step, config.train.checkpoint_every, last):
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
    position.advance(applied, counts, missing=run.config.train.global_batch - counts.examples)
    run_log.meter.end_step(applied)
    for line in counts.damage:
        run_log.event("damaged", position, line)
    if applied:
        guard.accepted()
        run.memory.commit()
        return
    run.memory.discard()
    action, why = guard.refused(position, empty=not counts.examples)
    run_log.event(action, position, why)
    if action == ROLLBACK:
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


def first_checkpoint(run: Run) -> None:
    """Save a checkpoint before the first step if a rollback may need one."""
    if run.guard.may_roll_back and run.position.batch == 0:
        save(run.plan, run.engine, run.position, run.memory, run.world, run.saver)
        run.saver.finish()


def checkpoint(run: Run, rate: float, held_out_loss: float | None = None) -> None:
    """Start saving the run at this step."""
    run.run_log.heartbeat.write(run.position.step, SAVING)
    run.run_log.flush(run.position, rate)  # so that a resumed run logs the same lines as an uninterrupted one
    save(run.plan, run.engine, run.position, run.memory, run.world, run.saver, held_out_loss)


def last_step(config: RunConfig) -> int:
    """Return the step at which this attempt ends."""
    steps = total_steps(config)
    return min(steps, config.run.stop_after or steps)
