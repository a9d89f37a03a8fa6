"""Give a phase of longer examples first vectors for all its positions, from those that shorter ones have trained."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from pretrain.distributed.engine import Engine
from pretrain.distributed.partition_map import whole_weights
from pretrain.distributed.world import World
from pretrain.preflight.check_run import Plan
from pretrain.training.initial_weights.positions import EXTENSIONS, is_position_table
from pretrain.training.progress import Position


@torch.no_grad()
def extend_trained_positions(
    plan: Plan, engine: Engine, position: Position, world: World, say: Callable[[str], None]
) -> None:
    """Where the phase's examples are longer than all that the tables of learned positions were trained on, give the
    rows up to their length first values, as init_positions says; moments stay. Those rows are otherwise as they were
    drawn. All ranks call this."""
    trained, length = position.positions_trained, plan.phase.config.data.sequence_length
    if not 0 < trained < length:
        return
    position.positions_trained = length
    names = sorted(name for name in engine.partition.shapes if is_position_table(name))
    if not names:
        return
    how, tables = plan.phase.config.init_positions, whole_weights(engine.partition, world, names)
    for name in names:
        rows = tables.setdefault(name, torch.empty(engine.partition.shapes[name]))
        if world.rank == 0:
            rows[:length] = EXTENSIONS[how](rows[:trained].clone(), rows[:length].clone())
        if world.size > 1:
            dist.broadcast(rows, src=0, group=world.messages)

    def read(name: str, kind: str, start: int, count: int) -> Tensor | None:
        rows = tables.get(name) if kind == "master" else None
        return None if rows is None else rows.view(-1)[start : start + count]

    engine.partition.load(read, updates=engine.partition.updates)
    if world.rank == 0:
        where = f"phase {plan.phase.name}: " if plan.phase.name else ""
        say(f"{where}{trained:,} positions extended to {length:,} (init_positions={how})")
