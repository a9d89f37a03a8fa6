"""Shards in; checkpoints, metrics and a summary out: the training loop, from top to bottom.

agreed shares of global batches -> forward and backward over micro-batches -> one step -> log, evaluate, save
"""

import os
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from data_pipeline import draws
from data_pipeline.errors import UserError
from data_pipeline.loader import Loader
from data_pipeline.packing import StepShare
from pretrain.agreement import Agreed, StopRequest, agreed
from pretrain.batch import MicroBatch
from pretrain.config import RunConfig
from pretrain.engine import Engine, build_engine
from pretrain.evaluate.held_out import HeldOut
from pretrain.guard import ROLLBACK, Guard, poisoned
from pretrain.journal import Journal, is_due
from pretrain.objectives.base import build
from pretrain.optim.schedule import learning_rate
from pretrain.preflight import Plan, check_run
from pretrain.report import render
from pretrain.resume import Position, begin, roll_back, save
from pretrain.run_folder import check_folder, lock, open_run, seen_by_all
from pretrain.watchdog import Watchdog
from pretrain.world import World

STOPPED = 3
"""Exit code after a signal: the run is saved, and the same command goes on with it."""


@dataclass(frozen=True)
class Run:
    """What the loop works with."""

    config: RunConfig
    plan: Plan
    engine: Engine
    held_out: HeldOut
    journal: Journal
    position: Position
    guard: Guard
    stop: StopRequest
    world: World


def train(config: RunConfig, console: Console, command: str) -> None:
    """Runs, or goes on with, the run that `config` describes. All ranks call this.

    Raises UserError for what a person can put right; exits with STOPPED after a signal, its checkpoint saved."""
    stop = StopRequest()
    world = World.from_environment()
    set_threads(config, world)
    plan = check_run(config, world.size)
    world = world.start(patience(config))
    held = None
    try:
        about, held = agreed_run(config, plan, world)
        if about["finished"]:
            if world.rank == 0:
                done = f"finished at step {config.train.steps:,}; nothing to do"
                console.print(f"{config.run.dir}: {done}", soft_wrap=True)
            return
        engine = build_engine(
            build(
                plan.objective,
                config.encoder,
                plan.index.vocabulary.size,
                config.run.seed,
                config.train.activation_checkpointing,
            ),
            config,
            world,
        )
        position = begin(config, plan, engine, world, console)
        held_out = HeldOut(plan, config, world)
        with Journal(config, plan, engine, world, console, command, about["id"]) as journal:
            guard = Guard(config, position, world, engine.precision)
            loop(Run(config, plan, engine, held_out, journal, position, guard, stop, world))
        if world.rank == 0:
            if position.step < last_step(config):
                again = "the same command goes on from there"
                console.print(f"stopped after step {position.step:,}; {again}", soft_wrap=True)
            console.print(f"report: {render(Path(config.run.dir))}", soft_wrap=True)
    finally:
        world.stop()
        if held is not None:
            held.close()
    if position.step < last_step(config):
        raise SystemExit(STOPPED)


def agreed_run(config: RunConfig, plan: Plan, world: World) -> tuple[dict[str, Any], Any]:
    """What the first rank finds or makes in the run folder, and its hold on it; what it refuses, all refuse."""
    about: dict[str, Any] = {}
    held = None
    if world.rank == 0:
        try:
            check_folder(config, plan)
            held = lock(Path(config.run.dir))
            about = open_run(config, plan)
        except UserError as error:
            about = {"refused": [error.what, error.where, error.expected, error.remedy]}
    about = world.broadcast(about)
    if "refused" in about:
        what, where, expected, remedy = about["refused"]
        raise UserError(what, where=where, expected=expected, remedy=remedy)
    if not about["finished"]:
        seen_by_all(Path(config.run.dir), about, world)
    return about, held


def loop(run: Run) -> None:
    """Steps until the run is done, has come to run.stop_after, or is asked to stop."""
    config, journal, position = run.config, run.journal, run.position
    last = last_step(config)
    saved = first_checkpoint(run)
    log = Path(config.run.dir) / "logs" / f"rank-{run.world.rank}.log"
    with training_loader(run) as loader, Watchdog(config.run.step_limit, log) as watchdog:
        steps = agreed(iter(loader), run.world, run.stop)
        while position.step < last:
            watchdog.feed()
            share, counts = next(steps)
            if counts.stop:
                break
            rate = learning_rate(position.step, config.optim.lr, config.train.steps, config.schedule)
            run.engine.set_lr(rate)
            accepted = compute(run, share, counts)
            applied = bool(counts.examples) and run.engine.step(keep_scale=not accepted)
            consumed(run, applied, counts)
            if not applied:
                continue
            journal.step(position, counts, rate)
            if is_due(position.step, config.train.eval_every, config.train.steps):
                watchdog.feed()
                journal.evaluation(position, run.held_out.evaluate)
            if is_due(position.step, config.train.checkpoint_every, last):
                watchdog.feed()
                saved = checkpoint(run, rate)
        watchdog.feed()
        if position.step > saved:
            checkpoint(run, run.engine.lr)
    journal.ended("finished" if position.step >= config.train.steps else "stopped")


def compute(run: Run, share: StepShare, counts: Agreed) -> bool:
    """Forward and backward over this rank's micro-batches, with empty ones where other ranks have more; whether the
    guard accepts the batch. If not, its gradient is NaN, which no rank applies."""
    vocabulary, accepted = run.plan.index.vocabulary, True
    for number in range(counts.micro_batches):
        if number < len(share.micro_batches):
            micro_batch = MicroBatch.from_packed(share.micro_batches[number])
        else:
            micro_batch = MicroBatch.empty(vocabulary.cls, vocabulary.sep)
        seed_dropout(run.config.run.seed, share.batch, run.world.rank, number)
        terms, _ = run.engine(micro_batch.to(run.world.device, non_blocking=True))
        # sums over the counts of the whole global batch, times W: DeepSpeed averages gradients over the ranks
        loss = sum(
            term.sum
            * (term.weight * run.world.size / max(getattr(counts, run.plan.objective.counted_by[name]), 1))
            for name, term in terms.items()
        )
        run.guard.add(loss)
        last = number == counts.micro_batches - 1
        accepted = not last or run.guard.accepts()
        run.engine.backward(loss if accepted else poisoned(loss), last=last)
        run.journal.meter.add(terms)
    return accepted


def consumed(run: Run, applied: bool, counts: Agreed) -> None:
    """Counts a batch. One that was not applied is skipped, rolled back to a checkpoint, or ends the run, and said."""
    position, journal, guard = run.position, run.journal, run.guard
    position.advance(applied, counts, missing=run.config.train.global_batch - counts.examples)
    journal.meter.end_step(applied)
    for line in counts.damage:
        journal.event("damaged", position, line)
    if applied:
        guard.accepted()
        return
    action, why = guard.refused(position, empty=not counts.examples)
    journal.event(action, position, why)
    if action == ROLLBACK:
        roll_back(run.config, run.engine, position)
        guard.rolled_back(position)
        journal.rolled_back(position)


def first_checkpoint(run: Run) -> int:
    """The step of the newest checkpoint, the one to begin with; made now where a rollback might want it."""
    position = run.position
    if run.guard.may_roll_back and position.batch == 0:
        save(run.config, run.plan, run.engine, position, run.world)
    return position.step


def checkpoint(run: Run, rate: float) -> int:
    """Saves the run at this step, and returns it."""
    run.journal.flush(run.position, rate)  # so that a resumed run's lines are those of one never stopped
    save(run.config, run.plan, run.engine, run.position, run.world)
    return run.position.step


def training_loader(run: Run) -> Loader:
    """This rank's shares, from the first global batch that the run has not seen."""
    config, plan, world = run.config, run.plan, run.world
    caps = plan.caps(plan.index.train, config)
    start = run.position.batch
    return Loader(
        plan.index,
        plan.order(config),
        caps,
        rank=world.rank,
        world=world.size,
        start_batch=start,
        masking=plan.masking,
        skip_damaged=config.data.on_damage == "skip",
    )


def seed_dropout(seed: int, batch: int, rank: int, micro_batch: int) -> None:
    """Points torch's generators at the dropout of one micro-batch: no generator's state needs to be saved."""
    torch.manual_seed(draws.text_key(f"dropout {seed} {batch} {rank} {micro_batch}") >> 1)


def last_step(config: RunConfig) -> int:
    """The step at which this life of the run ends."""
    return min(config.train.steps, config.run.stop_after or config.train.steps)


def patience(config: RunConfig) -> timedelta:
    """How long ranks wait for each other: longer than a step may take, so that the watchdog speaks first."""
    return timedelta(seconds=max(1800.0, config.run.step_limit + 600.0))


def set_threads(config: RunConfig, world: World) -> None:
    """CPU threads of this rank, set explicitly: sums depend on how they are shared out."""
    available = len(os.sched_getaffinity(0))
    torch.set_num_threads(config.run.threads or max(1, available // world.local_size))
    if config.train.deterministic:
        os.environ.setdefault(
            "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
        )  # without it cuBLAS may differ from run to run
    torch.use_deterministic_algorithms(config.train.deterministic, warn_only=True)
