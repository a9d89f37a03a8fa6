"""Open a run's folder with all ranks connected, check what needs them all, and print a summary before the first step.

What needs all ranks: whether each sees the shards and the folder, disk space for the checkpoints, whether the ranks
reach each other and how fast, and the resulting batches. An error is raised on all ranks alike. before_ranks.py checks
what one process can, once.
"""

import math
import os
import socket
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console

from data_pipeline.errors import UserError
from data_pipeline.loader.loader import Shares
from pretrain.checkpoint.mirror import bring_back
from pretrain.checkpoint.retention import drop_leftovers
from pretrain.checkpoint.store import checkpoints, wait_for_newest
from pretrain.config.phases import Phase
from pretrain.config.settings import RunConfig
from pretrain.distributed.launch_env import is_checked
from pretrain.distributed.world import World, raise_on_all_ranks, unstated_threads
from pretrain.optim.schedule import updates
from pretrain.preflight.check_run import Plan, check_room, plan_phases, run_identity, verify_shards
from pretrain.preflight.memory import parameters_of
from pretrain.preflight.warnings import run_warnings
from pretrain.run.files import folder_wait
from pretrain.run.folder import lock
from pretrain.run.human import in_bytes
from pretrain.training.before_ranks import check_folder, check_start, open_run, seen_by_all
from pretrain.training.initial_weights_check import check_starting_weights

PROBE_BYTES = {"cuda": 64 << 20, "cpu": 4 << 20}
"""Bytes in the all-reduce that measures the links."""


def check_links(world: World) -> str:
    """All-reduce a vector over all ranks and return the speed in words. Raises UserError if the sum is wrong.
    All ranks call this."""
    hosts = world.gather(socket.gethostname())
    where = f"{world.size} ranks on {len(set(hosts))} machine{'s' if len(set(hosts)) > 1 else ''} ({world.device.type})"
    if world.size == 1:
        return f"1 rank ({world.device.type}), {torch.get_num_threads()} threads"
    count = PROBE_BYTES.get(world.device.type, PROBE_BYTES["cpu"]) // 4
    values = torch.full((count,), float(world.rank + 1)).to(world.device)
    dist.all_reduce(values)  # the first call creates the connections
    expected = world.size * (world.size + 1) / 2
    # filled and compared on the host: so that the links alone decide
    wrong = [r for r, ok in enumerate(world.gather(bool((values.cpu() == expected).all()))) if not ok]
    if wrong:
        raise UserError(
            f"an all-reduce over {world.size} ranks gave a wrong sum on ranks {wrong[:5]}",
            where="links",
            remedy="look at the network and the devices of these machines",
        )
    started = time.perf_counter()
    dist.all_reduce(values)
    float(values[0])  # wait for the device
    slowest = max(world.gather(time.perf_counter() - started))
    moved = 2 * (world.size - 1) / world.size * 4 * count  # bytes that a rank sends in a ring
    return f"{where}, {torch.get_num_threads()} threads each; all-reduce of {4 * count >> 20} MiB in " + (
        f"{1e3 * slowest:,.1f} ms, {moved / slowest / 1e9:,.2f} GB/s a rank"
    )


def plan_warnings(plan: Plan, ranks: int) -> list[str]:
    """Return `run_warnings` about this phase, by its shards."""
    train, split = plan.phase.config.train, plan.index.train
    tokens = train.global_batch / ranks * split.tokens / split.examples
    fill = tokens / (train.micro_batch * plan.index.settings["sequence_length"])
    return run_warnings(plan.phase, ranks, fill, plan.examples / split.examples, plan.index.held_out.examples)


def phase_lines(plan: Plan, world: World) -> list[str]:
    """Return what this phase reads and does, in words."""
    config, index = plan.phase.config, plan.index
    train, split, order = config.train, index.train, plan.order(config)
    share = math.ceil(train.global_batch / world.size)
    mean = split.tokens / split.examples
    passes = math.ceil(share * mean / (train.micro_batch * index.settings["sequence_length"]))
    footprint = Shares(index, order, plan.caps(split, config), world.rank, world.size, plan.masking).footprint
    length, epochs = f"{train.minutes:g} minutes of training, in steps", ""
    if not train.minutes:
        length = f"{train.steps:,} steps"
        epochs = f"; {plan.examples / split.examples:,.2f} epochs"
    first = plan.sizes.smallest
    ramp = f"; {first:,} at first, growing over {train.batch_ramp:,} batches" if plan.sizes.ramp else ""
    return [
        f"{split.examples:,} examples of {mean:.0f} tokens on average, the longest {split.max_tokens}; "
        f"{index.held_out.examples:,} held out; vocabulary of {index.vocabulary.size:,}",
        f"{length} of {train.global_batch:,} examples, {share:,} a rank in about {passes} "
        f"micro-batch{'es' * (passes != 1)}{ramp}{epochs}",
        f"{config.optim.name}, rate up to {config.optim.lr:g} in {_warmup(plan.phase)}, then {config.schedule.name}",
        f"a rank reads {footprint.streams} of {plan.streams} streams, {footprint.open_blocks} blocks open, "
        f"{in_bytes(footprint.bytes)}",
    ]


def _warmup(phase: Phase) -> str:
    warmup = phase.config.schedule.warmup
    if phase.config.train.minutes:
        return f"{warmup:.0%} of the time"
    of_run = f" of the run's {phase.run_steps:,}" if phase.spans_run else ""
    return f"{updates(warmup, phase.schedule_steps):,} steps{of_run}"


def by_the_clock(config: RunConfig) -> str:
    """Say what a budget of time means for repeating the run; empty without one."""
    if config.train.replay:
        return f"the rate follows the shares logged in {config.train.replay}"
    if config.train.minutes:
        return (
            "the rate follows the clock of training, so that a repeated or resumed run is not bit-equal; "
            "train.replay=RUN repeats one that is"
        )
    return ""


def summary(
    config: RunConfig, plans: list[Plan], world: World, console: Console, chosen: Sequence[str] = ()
) -> None:
    """Check disk and links, and print a summary of the run on the first rank, with the lines `chosen` about
    settings that the ranks chose. All ranks call this. Raises UserError for anything that cannot work."""
    parameters = parameters_of(config, plans[0].index.vocabulary.size)
    room = raise_on_all_ranks(world, lambda: check_room(config, parameters))
    links = check_links(world)
    if world.rank != 0:
        return
    lines = [
        f"{parameters:,} parameters in {plans[0].precision}, ZeRO stage {config.zero.stage}",
        links,
        f"{config.run.dir}: {room}",
        *chosen,
    ]
    if unstated := unstated_threads(config, world, os.environ):
        lines.append(f"! {unstated}")
    for plan in plans:
        name = f"phase {plan.phase.name}: " if plan.phase.name else ""
        lines += [f"{name}{line}" for line in phase_lines(plan, world)]
        lines += [f"{name}{line}" for line in (by_the_clock(plan.phase.config),) if line]
        lines += [f"! {name}{line}" for line in plan_warnings(plan, world.size)]
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False)


# Derive the plan on every rank, and open the folder of the run, new or existing: one process holds it, all see it.


def plan_on_rank(config: RunConfig, world: World) -> list[Plan]:
    """Return the plan of each phase; on the first rank, after all checks, unless they were made before the ranks were
    started. Raises UserError if this rank cannot read the shards; the first one of each other machine verifies them
    where data.verify asks for it, since they may be copies."""
    if world.rank == 0 and not is_checked(os.environ):
        check_start(config, world.size)
    plans = plan_phases(config, world.size)
    if world.rank and world.local_rank == 0:
        verify_shards(plans)
    return plans


def open_on_all_ranks(
    config: RunConfig, plans: list[Plan], world: World, console: Console
) -> tuple[dict[str, Any], Any]:
    """Open the run folder on the first rank; return its contents and lock. Its errors are raised on all ranks."""

    folder = Path(config.run.dir)
    say = partial(console.print, soft_wrap=True, markup=False)

    def opened() -> tuple[dict[str, Any], Any]:
        if world.rank != 0:
            return {}, None
        check_folder(config, plans, say)
        held = lock(folder)
        try:
            wait_for_newest(folder, folder_wait(config.run), say)  # before it is taken for a leftover
            drop_leftovers(folder)  # before free disk space is checked
            if config.checkpoint.mirror and (line := bring_back(config, run_identity(plans))):
                say(line)
            if config.checkpoint.mirror and not checkpoints(folder):  # else `check_start` has
                check_starting_weights(config, plans[0])
            return open_run(config, plans), held
        except BaseException:
            held.close()
            raise

    about, held = raise_on_all_ranks(world, opened)
    about = world.broadcast(about)
    if not about["finished"]:
        raise_on_all_ranks(world, lambda: seen_by_all(folder, about, world, folder_wait(config.run)))
    return about, held
