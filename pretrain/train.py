"""Shards in; checkpoints, metrics and a summary out: the training loop, from top to bottom.

of each phase: agreed shares of global batches -> forward and backward over micro-batches -> one step -> log, evaluate,
save
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from data_pipeline import draws
from data_pipeline.errors import UserError
from data_pipeline.loader import Loader
from data_pipeline.packing import StepShare
from pretrain.agreement import Agreed, StopRequest, agreed, told_alike
from pretrain.batch import MicroBatch
from pretrain.config import RunConfig
from pretrain.engine import Engine, build_engine
from pretrain.evaluate.held_out import HeldOut
from pretrain.journal import Journal, is_due
from pretrain.objectives.base import build
from pretrain.optim.schedule import learning_rate
from pretrain.phases import total_steps
from pretrain.preflight import Plan, check_run
from pretrain.readiness import summary
from pretrain.report import render
from pretrain.resume import Position, begin, enter, save
from pretrain.run_folder import check_folder, lock, open_run, seen_by_all
from pretrain.world import World

MAX_OVERFLOWS = 10
"""Skipped steps in a row that end a run: its loss scale is not going to recover."""
STOPPED = 3
"""Exit code after a signal: the run is saved, and the same command goes on with it."""


@dataclass(frozen=True)
class Run:
    """What the loop works with in one phase."""

    config: RunConfig
    plan: Plan
    """Of this phase, as is `config`."""
    engine: Engine
    held_out: HeldOut
    journal: Journal
    position: Position
    stop: StopRequest
    world: World


def train(config: RunConfig, console: Console, command: str) -> None:
    """Runs, or goes on with, the run that `config` describes. All ranks call this.

    Raises UserError for what a person can put right; exits with STOPPED after a signal, its checkpoint saved."""
    stop = StopRequest()
    world = World.from_environment()
    set_threads(config, world)
    world = world.start()
    held = None
    try:
        plans = told_alike(world, lambda: check_run(config, world.size))
        about, held = agreed_run(config, plans, world)
        last = total_steps(config)
        if about["finished"]:
            if world.rank == 0:
                done = f"finished at step {last:,}; nothing to do"
                console.print(f"{config.run.dir}: {done}", soft_wrap=True)
            return
        summary(config, plans, world, console)
        engine = build_engine(
            build(
                plans[0].objective,
                config.encoder,
                plans[0].index.vocabulary.size,
                config.run.seed,
                config.train.activation_checkpointing,
            ),
            config,
            world,
        )
        position = begin(config, plans, engine, world, console)
        with Journal(config, plans, engine, world, console, command, about["id"]) as journal:
            for plan in phases_left(plans, position, last_step(config)):
                enter(plan, engine, position)
                journal.enter(plan)
                held_out = HeldOut(plan, plan.phase.config, world)
                loop(Run(plan.phase.config, plan, engine, held_out, journal, position, stop, world))
            journal.ended("finished" if position.step >= last else "stopped")
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


def phases_left(plans: list[Plan], position: Position, last: int) -> Iterator[Plan]:
    """The phases that are not done, each once the one before has come to its end, up to step `last`."""
    for plan in plans:
        if plan.phase.first <= position.step < min(plan.phase.last, last):
            yield plan


def agreed_run(config: RunConfig, plans: list[Plan], world: World) -> tuple[dict[str, Any], Any]:
    """What the first rank finds or makes in the run folder, and its hold on it; what it refuses, all refuse."""

    def opened() -> tuple[dict[str, Any], Any]:
        if world.rank != 0:
            return {}, None
        check_folder(config, plans)
        held = lock(Path(config.run.dir))
        return open_run(config, plans), held

    about, held = told_alike(world, opened)
    about = world.broadcast(about)
    if not about["finished"]:
        told_alike(world, lambda: seen_by_all(Path(config.run.dir), about, world))
    return about, held


def loop(run: Run) -> None:
    """Steps until the phase is done, the run has come to run.stop_after, or it is asked to stop."""
    config, engine, journal, position = run.config, run.engine, run.journal, run.position
    phase = run.plan.phase
    saved, overflows, last = position.step, 0, min(phase.last, config.run.stop_after or phase.last)
    with training_loader(run) as loader:
        steps = agreed(iter(loader), run.world, run.stop)
        while position.step < last:
            journal.pace.start()
            share, counts = next(steps)
            if counts.stop:
                break
            rate = learning_rate(
                position.step - phase.first, config.optim.lr, config.train.steps, config.schedule
            )
            engine.set_lr(rate)
            compute(run, share, counts)
            applied = engine.step()
            journal.meter.end_step(applied)
            position.advance(applied, counts)
            overflows = 0 if applied else overflows + 1
            if overflows == MAX_OVERFLOWS:
                raise UserError(
                    f"the gradients of {overflows} batches in a row were not finite, after step {position.step}",
                    where=config.run.dir,
                    remedy="lower optim.lr, or use train.precision=bf16 or fp32",
                )
            if not applied:
                continue
            journal.step(position, counts, rate)
            if is_due(position.step, config.train.eval_every, phase.last):
                journal.evaluation(position, run.held_out.evaluate)
            if is_due(position.step, config.train.checkpoint_every, last):
                journal.flush(position, rate)  # so that a resumed run's lines are those of one never stopped
                save(run.plan, engine, position, run.world)
                saved = position.step
    if position.step > saved:
        journal.flush(position, engine.lr)
        save(run.plan, engine, position, run.world)


def compute(run: Run, share: StepShare, counts: Agreed) -> None:
    """Forward and backward over this rank's micro-batches, with empty ones where other ranks have more."""
    vocabulary = run.plan.index.vocabulary
    for number in range(counts.micro_batches):
        if number < len(share.micro_batches):
            micro_batch = MicroBatch.from_packed(share.micro_batches[number])
        else:
            micro_batch = MicroBatch.empty(vocabulary.cls, vocabulary.sep)
        seed_dropout(run.config.run.seed, run.position.phase_batch + share.batch, run.world.rank, number)
        with run.journal.pace.forward(micro_batch.tokens):
            terms, _ = run.engine(micro_batch.to(run.world.device, non_blocking=True))
        # sums over the counts of the whole global batch, times W: DeepSpeed averages gradients over the ranks
        loss = sum(
            term.sum
            * (term.weight * run.world.size / max(getattr(counts, run.plan.objective.counted_by[name]), 1))
            for name, term in terms.items()
        )
        run.engine.backward(loss, last=number == counts.micro_batches - 1)
        run.journal.meter.add(terms)


def training_loader(run: Run) -> Loader:
    """This rank's shares, from the first global batch that the phase has not seen."""
    config, plan, world = run.config, run.plan, run.world
    caps = plan.caps(plan.index.train, config)
    start = run.position.batch_of_phase
    return Loader(
        plan.index,
        plan.order(config),
        caps,
        rank=world.rank,
        world=world.size,
        start_batch=start,
        masking=plan.masking,
    )


def seed_dropout(seed: int, batch: int, rank: int, micro_batch: int) -> None:
    """Points torch's generators at the dropout of one micro-batch: no generator's state needs to be saved."""
    torch.manual_seed(draws.text_key(f"dropout {seed} {batch} {rank} {micro_batch}") >> 1)


def last_step(config: RunConfig) -> int:
    """The step at which this life of the run ends."""
    steps = total_steps(config)
    return min(steps, config.run.stop_after or steps)


def set_threads(config: RunConfig, world: World) -> None:
    """CPU threads of this rank, set explicitly: sums depend on how they are shared out."""
    available = len(os.sched_getaffinity(0))
    torch.set_num_threads(config.run.threads or max(1, available // world.local_size))
    if config.train.deterministic:
        os.environ.setdefault(
            "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
        )  # without it cuBLAS may differ from run to run
    torch.use_deterministic_algorithms(config.train.deterministic, warn_only=True)
