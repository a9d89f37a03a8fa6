"""Load an engine's weights and the position to resume from, save both, enter the next phase, and roll back.

Everything but the tensors is in the checkpoint's JSON state: the position (phase, step, batch, skipped batches), the
loader's state, the number of updates, the loss scale, the run's identity, and the conditions for a bit-exact resume.
"""

import platform
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from data_pipeline.errors import UserError, redact_settings
from data_pipeline.loader.loader import loader_state, resumed_batch
from pretrain.checkpoint.mirror import Mirror
from pretrain.checkpoint.padding import reader, real_shapes, unpadded
from pretrain.checkpoint.retention import set_aside
from pretrain.checkpoint.save import Saver
from pretrain.checkpoint.store import (
    DAMAGED,
    Checkpoint,
    all_damaged,
    newest_checkpoint,
    newest_whole,
    wait_for_files,
)
from pretrain.config.settings import RunConfig, TrainSettings
from pretrain.distributed.engine import Engine
from pretrain.distributed.launch_env import resolve_precision
from pretrain.distributed.watchdog import Watchdog
from pretrain.distributed.world import World, raise_on_all_ranks
from pretrain.model.encoder import set_thetas
from pretrain.objectives.teacher import has_teacher
from pretrain.optim import lamb
from pretrain.preflight.check_run import Plan, identity_of
from pretrain.run.files import folder_wait
from pretrain.run.folder import refuse_another
from pretrain.run.metrics_log import cut_metrics
from pretrain.training import feed
from pretrain.training.initial_weights import extend_trained_positions, start_from
from pretrain.training.progress import Position, position_of
from pretrain.training.stream_memory import StreamMemory


def begin(
    config: RunConfig,
    plans: list[Plan],
    engine: Engine,
    world: World,
    console: Console,
    watchdog: Watchdog,
) -> tuple[Position, Checkpoint | None]:
    """Load the run's newest checkpoint, or the model in init_from, into the engine; return the position to resume
    from and that checkpoint."""
    folder = Path(config.run.dir)
    watchdog.stage("looking for the newest whole checkpoint, here and in the mirror")
    say = partial(console.print, soft_wrap=True, markup=False)
    checkpoint = raise_on_all_ranks(world, lambda: checkpoint_to_resume(config, world, say))
    watchdog.stage("loading a checkpoint or init_from")
    if checkpoint is not None:
        position = position_of(checkpoint)
        plan = plans[min(position.phase, len(plans) - 1)]
        if plan.phase.first is not None:  # checkpoints had no phase_step while every phase had steps
            position.phase_step = plan.phase.first
        phase_config = plan.phase.config
        now = identity_of(phase_config, plan)
        refuse_another(checkpoint.state["identity"], now, checkpoint.folder, "delete this checkpoint")
        position.batch = position.phase_batch + resumed_batch(
            checkpoint.state["loader"], plan.index, plan.order(phase_config), plan.masking
        )
        _load(checkpoint, engine)
        lost = _cut_history(folder, position.step, world)
        if world.rank == 0:
            line = _resuming(checkpoint, conditions(phase_config, world), phase_config.train, lost)
            console.print(line, soft_wrap=True)
        return position, checkpoint
    _cut_history(folder, 0, world)
    trained = plans[0].phase.config.data.sequence_length
    if has_teacher(config):  # the folder of the teacher brings all of them
        trained = config.encoder.max_positions
    if config.init_from:
        trained = start_from(Path(config.init_from), config, plans[0], engine, world, say)
    return Position(positions_trained=trained), None


def checkpoint_to_resume(
    config: RunConfig, world: World, say: Callable[[str], None], *, waits: bool = True
) -> Checkpoint | None:
    """Find the checkpoint to resume from; None for a new run. All ranks call this. If the mirror has a newer whole
    copy than the run folder, because the newest here is damaged or missing, it is fetched, verified and used. `say`
    gets a line, on the first rank, for each checkpoint fetched or set aside and for an unreachable mirror. `waits`: for
    files that are shown late, before they count as damage.

    Raises UserError if checkpoints exist but none is whole, here or in the mirror, and if none is whole here and
    the mirror is unreadable."""
    folder = Path(config.run.dir)
    wait = partial(wait_for_files, seconds=folder_wait(config.run) if waits else 0.0, say=say)
    checkpoint, damaged = newest_whole(folder, world, wait)

    def mended() -> bool:
        if world.rank != 0:
            return False
        step = None
        if config.checkpoint.mirror:
            try:
                step = Mirror(config).fetch_newest(
                    folder, above=-1 if checkpoint is None else checkpoint.step
                )
            except UserError as error:
                if checkpoint is None:
                    raise
                say(
                    f"maskmill: WARNING: {error}; resuming from {checkpoint.folder.name}, which is whole here"
                )
        if step is None and checkpoint is None and damaged:
            raise all_damaged(folder, damaged)
        if step is not None:
            say(
                f"fetched the checkpoint of step {step:,}, which is not whole here, from {Mirror(config).uri}"
            )
        resumed = f"step-{step:08d}" if step is not None else checkpoint.folder.name if checkpoint else ""
        for path, found in damaged:
            if path.name == resumed:  # set aside to make room for its copy
                fate = f"set aside as {path.name}{DAMAGED}, its copy in the mirror is whole"
            else:
                fate = f"set aside as {set_aside(path).name}, falling back to {resumed}"
            say(f"{path.name} is damaged ({found}): {fate}")
        return step is not None

    return newest_checkpoint(folder, world, wait) if any(world.together(mended)) else checkpoint


def _cut_history(folder: Path, step: int, world: World) -> int:
    """Cut log lines after the checkpoint on the first rank and return how many; its errors (a full disk) reach all
    ranks."""
    return raise_on_all_ranks(world, lambda: cut_metrics(folder, step) if world.rank == 0 else 0)


def enter(plan: Plan, engine: Engine, position: Position, world: World, say: Callable[[str], None]) -> None:
    """Give the model what the phase sets of it, and move the run from the end of a phase into the next one; inside a
    phase, it stays."""
    set_thetas(engine.module, plan.phase.config.encoder)
    if plan.phase.number > position.phase:
        position.phase = plan.phase.number
        position.phase_batch, position.phase_examples = position.batch, position.examples
        position.phase_step, position.elapsed, position.spent = position.step, 0.0, False
        position.losses.clear()  # other lengths have other losses: the first ones are not spikes
        _restart_schedule(plan, engine)
    extend_trained_positions(plan, engine, position, world, say)


def _restart_schedule(plan: Plan, engine: Engine) -> None:
    """Restart the optimizer's update count at a phase boundary, unless it spans the run, as the schedule does."""
    if not plan.phase.spans_run:
        engine.partition.restart_bias_correction()


def phase_memory(plan: Plan, checkpoint: Checkpoint | None, world: World) -> StreamMemory:
    """Return the memory of this rank's streams in a phase: the checkpoint's if the run resumes within the phase,
    else new, since another phase's data order does not continue the streams."""
    memory = StreamMemory.of_rank(plan.objective.memory, plan.streams, world)
    _load_memory(memory, plan, checkpoint)
    return memory


def _load_memory(memory: StreamMemory, plan: Plan, checkpoint: Checkpoint | None) -> None:
    memory.clear()
    if checkpoint is not None and position_of(checkpoint).phase == plan.phase.number:
        memory.load(checkpoint)


def roll_back(
    plan: Plan,
    engine: Engine,
    position: Position,
    memory: StreamMemory,
    world: World,
    say: Callable[[str], None],
) -> None:
    """Load the newest whole checkpoint into the engine. Later batches stay consumed and count as skipped. All ranks
    call this, when a checkpoint exists and no save is in progress. Damaged checkpoints are handled as at a start,
    and reported. Raises UserError if the remaining checkpoints are from before this phase."""
    config, phase = plan.phase.config, plan.phase
    wait = partial(wait_for_files, seconds=folder_wait(config.run), say=say)
    checkpoint, damaged = newest_whole(Path(config.run.dir), world, wait)
    if damaged:  # otherwise retention would keep it as the newest, over those made from now on
        checkpoint = raise_on_all_ranks(world, lambda: checkpoint_to_resume(config, world, say, waits=False))
    if checkpoint is None:
        raise UserError("no checkpoint to roll back to", where=config.run.dir)
    then = position_of(checkpoint)
    first = position.phase_step
    if then.step < first:  # schedule, shards and order of the data here are not those of that step
        raise UserError(
            f"the newest whole checkpoint is of a phase before {phase.name}, which begins behind step {first:,}",
            where=checkpoint.folder,
            remedy="rerun the same command to resume from there",
        )
    _load(checkpoint, engine)
    _load_memory(memory, plan, checkpoint)
    position.step, position.losses = then.step, then.losses
    position.skipped = [*then.skipped, *range(then.batch, position.batch)]
    if then.phase < position.phase:  # a checkpoint at the phase boundary, of the previous phase
        position.losses.clear()
        _restart_schedule(plan, engine)
    position.positions_trained = then.positions_trained
    extend_trained_positions(plan, engine, position, world, say)


def _load(checkpoint: Checkpoint, engine: Engine) -> None:
    engine.partition.load(reader(checkpoint, engine), updates=checkpoint.state["updates"])
    engine.load_scaler_state(checkpoint.state["scaler"])


def save(
    plan: Plan,
    engine: Engine,
    position: Position,
    memory: StreamMemory,
    world: World,
    saver: Saver,
    held_out_loss: float | None = None,
) -> None:
    """Start saving a checkpoint of this position. All ranks call this. `held_out_loss`: that of this step."""
    phase, config = plan.phase, plan.phase.config
    shapes = real_shapes(engine)
    state = {
        "identity": identity_of(config, plan),
        "held_out_loss": held_out_loss,
        "position": asdict(position),
        "phase": {"name": phase.name, "first": position.phase_step, "last": phase.last},
        "loader": loader_state(plan.index, plan.order(config), position.batch_of_phase, plan.masking),
        "memory": memory.state(),
        "updates": engine.partition.updates,
        "scaler": engine.scaler_state(),
        "conditions": conditions(config, world),
        "config": redact_settings(asdict(config)),
    }
    fragments = chain(unpadded(engine.partition.fragments(), shapes), memory.fragments())
    saver.save(position.step, fragments, shapes, state)


def conditions(config: RunConfig, world: World) -> dict[str, Any]:
    """Return the conditions under which a resume is bit-exact; otherwise it is equal within rounding."""
    device = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else platform.machine()
    return {
        "ranks": world.size,
        "run.threads": torch.get_num_threads(),
        "zero.stage": config.zero.stage,
        "train.micro_batch": config.train.micro_batch,
        "train.deterministic": config.train.deterministic,
        "train.compile": feed.allowed(config, world.device, resolve_precision(config, world.device.type)),
        "train.kernels": lamb.name(world.device, config.train.kernels),
        "zero.offload": config.zero.offload,
        "device": device,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "CUDA": torch.version.cuda,
        "deepspeed": version("deepspeed"),
        "maskmill": version("maskmill"),
    }


def _resuming(checkpoint: Checkpoint, now: dict[str, Any], train: TrainSettings, lost: int) -> str:
    then = checkpoint.state["conditions"]
    changed = [f"{key} {then.get(key)} -> {now[key]}" for key in now if then.get(key) != now[key]]
    promise = f"equal within rounding, since {', '.join(changed)}" if changed else "bit-exact"
    if train.minutes and not train.replay:
        used = checkpoint.state["position"].get("elapsed", 0.0)
        promise = (
            f"{used / 60:.2f} of {train.minutes:g} minutes used; the rate follows the clock: not bit-exact"
        )
    again = f"; redoing {lost} logged steps" if lost else ""
    name = checkpoint.state.get("phase", {}).get("name", "")
    phase = f" of phase {name}" if name else ""
    return f"resuming from step {checkpoint.step:,}{phase} ({promise}){again}"
