"""A checked plan in; an engine with the right weights and the position to go on from, out; and the way back.

Everything beside the tensors is in the checkpoint's JSON state: counters, skipped batches, loss scale, and the
conditions under which the continuation is bit-equal.
"""

import math
import platform
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from data_pipeline.errors import UserError
from data_pipeline.loader import loader_state, resumed_batch
from pretrain.agreement import Agreed, told_alike
from pretrain.checkpoint import (
    Checkpoint,
    Fragment,
    drop_leftovers,
    drop_old_checkpoints,
    find_checkpoint,
    newest_checkpoint,
    save_checkpoint,
)
from pretrain.config import RunConfig
from pretrain.encoder.initialize import vocabulary_rows
from pretrain.engine import Engine
from pretrain.export.names import from_hugging_face
from pretrain.monitor import cut_metrics
from pretrain.optim.zero_partition import KINDS, Reader
from pretrain.preflight import Plan
from pretrain.run_folder import read_run
from pretrain.world import World


@dataclass
class Position:
    """How far a run is. `batch`: global batches consumed. `step`: updates accepted."""

    batch: int = 0
    step: int = 0
    skipped: list[int] = field(default_factory=list)
    """Batches whose update was not accepted (fp16 overflow), so that a continued run skips the same ones."""
    examples: int = 0
    tokens: int = 0
    phase: int = 0
    """Number of the phase that the run is in, from 0; at the end of a phase, that phase."""
    phase_batch: int = 0
    """Batches consumed before this phase, whose order of the data starts anew."""
    phase_examples: int = 0

    def advance(self, applied: bool, counts: Agreed) -> None:
        """Counts a consumed batch."""
        if applied:
            self.step += 1
        else:
            self.skipped.append(self.batch)
        self.batch += 1
        self.examples += counts.examples
        self.tokens += counts.tokens

    @property
    def batch_of_phase(self) -> int:
        """Batches consumed in this phase."""
        return self.batch - self.phase_batch


def begin(config: RunConfig, plans: list[Plan], engine: Engine, world: World, console: Console) -> Position:
    """Loads the run's newest checkpoint into the engine, or what init_from names; returns where to go on."""
    folder = Path(config.run.dir)
    if world.rank == 0:
        drop_leftovers(folder)
    world.barrier()
    checkpoint = told_alike(world, lambda: newest_checkpoint(folder))
    if checkpoint is not None:
        position = Position(**checkpoint.state["position"])
        plan = plans[position.phase]
        phase_config = plan.phase.config
        position.batch = position.phase_batch + resumed_batch(
            checkpoint.state["loader"], plan.index, plan.order(phase_config), plan.masking
        )
        engine.partition.load(reader(checkpoint, engine), updates=checkpoint.state["updates"])
        engine.load_scaler_state(checkpoint.state["scaler"])
        lost = cut_metrics(folder, position.step) if world.rank == 0 else 0
        if world.rank == 0:
            console.print(_going_on(checkpoint, conditions(phase_config, world), lost), soft_wrap=True)
        return position
    if world.rank == 0:
        cut_metrics(folder, 0)
    if config.init_from:
        _start_from(Path(config.init_from), config, engine)
    return Position()


def enter(plan: Plan, engine: Engine, position: Position) -> None:
    """Takes the run from the end of a phase into the next one; a phase that it is in already goes on."""
    if plan.phase.number > position.phase:
        position.phase = plan.phase.number
        position.phase_batch, position.phase_examples = position.batch, position.examples
        engine.partition.restart_bias_correction()


def save(plan: Plan, engine: Engine, position: Position, world: World) -> None:
    """Writes a checkpoint of this position and drops old ones. All ranks call this."""
    phase, config = plan.phase, plan.phase.config
    folder, shapes = Path(config.run.dir), real_shapes(engine)
    state = {
        "position": asdict(position),
        "phase": {"name": phase.name, "first": phase.first, "last": phase.last},
        "loader": loader_state(plan.index, plan.order(config), position.batch_of_phase, plan.masking),
        "updates": engine.partition.updates,
        "scaler": engine.scaler_state(),
        "conditions": conditions(config, world),
        "config": asdict(config),
    }
    save_checkpoint(folder, position.step, _real(engine.partition.fragments(), shapes), shapes, state, world)
    if world.rank == 0:
        drop_old_checkpoints(folder, config.train.keep_checkpoints)


def real_shapes(engine: Engine) -> dict[str, list[int]]:
    """Shape of every named tensor without vocabulary padding, which is the embedding's own affair."""
    rows = vocabulary_rows(engine.module)
    return {
        name: [rows[name], *shape[1:]] if name in rows else list(shape)
        for name, shape in engine.partition.shapes.items()
    }


def reader(checkpoint: Checkpoint, engine: Engine) -> Reader:
    """Reads any piece of the engine's tensors from the checkpoint; vocabulary padding, which it lacks, is zero.

    Raises UserError where the checkpoint is of another model."""
    shapes = real_shapes(engine)
    differing = [
        f"{n} {checkpoint.shapes.get(n)} (here {shape})"
        for n, shape in shapes.items()
        if checkpoint.shapes.get(n) != shape
    ]
    if differing:
        raise UserError(f"holds another model: {', '.join(differing[:5])}", where=checkpoint.folder)
    return _padded(checkpoint.read, shapes)


def conditions(config: RunConfig, world: World) -> dict[str, Any]:
    """Under which a continued run is bit-equal to one that was never stopped; else it is equal within rounding."""
    device = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else platform.machine()
    return {
        "ranks": world.size,
        "run.threads": torch.get_num_threads(),
        "zero.stage": config.zero.stage,
        "train.micro_batch": config.train.micro_batch,
        "train.deterministic": config.train.deterministic,
        "device": device,
        "torch": torch.__version__,
        "deepspeed": version("deepspeed"),
        "maskmill": version("maskmill"),
    }


def _going_on(checkpoint: Checkpoint, now: dict[str, Any], lost: int) -> str:
    then = checkpoint.state["conditions"]
    changed = [f"{key} {then.get(key)} -> {now[key]}" for key in now if then.get(key) != now[key]]
    promise = (
        f"equal within rounding, since {', '.join(changed)}"
        if changed
        else "bit-equal to a run never stopped"
    )
    again = f"; {lost} logged lines after it are done again" if lost else ""
    name = checkpoint.state.get("phase", {}).get("name", "")
    phase = f" of phase {name}" if name else ""
    return f"going on from step {checkpoint.step:,}{phase} ({promise}){again}"


def _start_from(source: Path, config: RunConfig, engine: Engine) -> None:
    """Weights of another model; the counters start anew, and with init_moments the moments are kept."""
    if not (source / "config.json").is_file():
        _check_vocabulary(source, config)
        kinds = KINDS if config.init_moments else ("master",)
        engine.partition.load(reader(find_checkpoint(source), engine), updates=0, kinds=kinds)
        return
    if config.init_moments:
        raise UserError("a Hugging Face folder has no moments", where=source, remedy="init_moments=false")
    shapes = real_shapes(engine)
    words = next(iter(vocabulary_rows(engine.module).values()))
    weights = from_hugging_face(source, config.encoder, words)
    missing = sorted(shapes.keys() - weights.keys())
    if missing:
        raise UserError(
            f"lacks {', '.join(missing[:5])}", where=source, expected="all weights of the objective"
        )

    def read(name: str, kind: str, start: int, length: int) -> Tensor:
        return weights[name].reshape(-1)[start : start + length]

    engine.partition.load(_padded(read, shapes), updates=0, kinds=("master",))


def _check_vocabulary(source: Path, config: RunConfig) -> None:
    """Raises UserError where the run that the weights come from had another vocabulary than this one."""
    then, now = read_run(source), read_run(Path(config.run.dir))
    if then and now and then["identity"]["vocabulary"] != now["identity"]["vocabulary"]:
        raise UserError(
            "was trained with another vocabulary", where=source, remedy="prepare the shards with that one"
        )


def _real(fragments: Iterable[Fragment], shapes: dict[str, list[int]]) -> Iterator[Fragment]:
    """The fragments without vocabulary padding, which is the tail of its tensor."""
    for fragment in fragments:
        left = math.prod(shapes[fragment.name]) - fragment.start
        if left > 0:
            yield replace(fragment, values=fragment.values[:left])


def _padded(read: Callable[[str, str, int, int], Tensor], shapes: dict[str, list[int]]) -> Reader:
    def padded(name: str, kind: str, start: int, length: int) -> Tensor:
        real = max(0, min(length, math.prod(shapes[name]) - start))
        values = torch.zeros(length)
        if real:
            values[:real] = read(name, kind, start, real)
        return values

    return padded
