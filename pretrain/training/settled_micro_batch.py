"""Settle train.micro_batch where it is 0, before anything of the run is checked, written or built.

A run that has begun keeps what it chose, at another number of ranks and on other GPUs too: the micro-batch is among the
conditions of a bit-exact resume. Otherwise the first rank chooses, from the smallest GPU of all ranks, and the
others are told: counted by each for itself, ranks with different GPUs would pack different micro-batches. From there on
the settings hold the number, as if it had been given: in config.yaml, in checkpoints and on W&B.

Does not import torch unless a GPU's memory is to be counted.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from data_pipeline.errors import UserError
from pretrain.checkpoint.store import checkpoints
from pretrain.config.phases import CPU_TOKENS, Phase, chosen, is_open, on_cpus, phases_of, with_micro_batches
from pretrain.config.settings import RunConfig
from pretrain.preflight.gpus import counted_memory
from pretrain.run.folder import CONFIG, read_config

if TYPE_CHECKING:
    from pretrain.distributed.world import World


def settled(config: RunConfig, world: "World") -> tuple[RunConfig, list[str]]:
    """Return the run with a micro-batch in each phase, and lines that say which were chosen. All ranks call this, and
    all get the same. Raises UserError on all ranks if no example fits."""
    from pretrain.distributed.world import raise_on_all_ranks

    if not is_open(config):
        return config, []
    memory = smallest(world.gather(_memory(world)))
    found = raise_on_all_ranks(world, lambda: choose(config, world.size, memory) if world.rank == 0 else None)
    values, lines = world.broadcast(found)
    return with_micro_batches(config, values), lines


def choose(config: RunConfig, ranks: int, memory: float | None) -> tuple[list[int], list[str]]:
    """Return the micro-batch of each phase, and lines that say which were chosen. `memory`: bytes of the smallest GPU;
    None: the ranks are on CPUs. Raises UserError if no example fits beside weights and optimizer state."""
    values, lines = [], []
    before, on_cpu = _begun(config), phases_of(on_cpus(config, ranks))
    for phase in phases_of(config):
        value = phase.config.train.micro_batch
        if not value:
            if kept := _kept(before, phase):
                value, why = kept, "as the run began with"
            elif memory is None:
                value, why = (
                    on_cpu[phase.number].config.train.micro_batch,
                    f"on CPUs, at most {CPU_TOKENS:,} tokens",
                )
            else:
                fits = _fits(phase, ranks, memory)
                value, why = chosen(phase.config, ranks, fits), f"of {fits:,} that fit {memory / 1e9:.0f} GB"
            name = f"phase {phase.name}: " if phase.name else ""
            lines.append(f"{name}train.micro_batch={value}, chosen: {why}")
        values.append(value)
    return values, lines


def smallest(memories: list[float | None]) -> float | None:
    """Return the bytes to count with on GPUs of so many bytes; None if there are none, or not on all ranks."""
    return None if None in memories or not memories else counted_memory(min(m for m in memories if m))


def visible_memory(ranks: int) -> float | None:
    """Return the bytes to count with for `ranks` ranks on this machine's GPUs; None: they are on its CPUs."""
    import torch

    count = min(ranks, torch.cuda.device_count())
    return smallest([torch.cuda.get_device_properties(n).total_memory for n in range(count)])


def _memory(world: "World") -> float | None:
    import torch

    if world.device.type != "cuda":
        return None
    return float(torch.cuda.get_device_properties(world.device).total_memory)


def _begun(config: RunConfig) -> RunConfig | None:
    """Return the settings that the run in run.dir, or in its mirror, has last trained with; None if it has saved
    nothing: then it may choose again, with other settings."""
    folder = Path(config.run.dir)
    if checkpoints(folder) and (folder / CONFIG).is_file():
        return read_config(folder)
    if not config.checkpoint.mirror:
        return None
    from pretrain.checkpoint.mirror import mirrored_config  # needs torch

    return mirrored_config(config)


def _kept(before: RunConfig | None, phase: Phase) -> int:
    """Return what the run had in this phase; 0: it is new, or was not run with it."""
    then = phases_of(before) if before else []
    return next((other.config.train.micro_batch for other in then if other.name == phase.name), 0)


def _fits(phase: Phase, ranks: int, memory: float) -> int:
    from pretrain.preflight.forecast import fitting

    config = phase.config
    found = fitting(config, ranks, memory)
    if not found.largest_micro_batch:
        raise UserError(
            f"not one example of {config.data.sequence_length} tokens fits a GPU of {memory / 1e9:.0f} GB beside "
            f"{found.states.total / 1e9:.1f} GB of weights and optimizer state at zero.stage={config.zero.stage}",
            where=f"phase {phase.name}, train.micro_batch=0" if phase.name else "train.micro_batch=0",
            remedy="a higher zero.stage, train.activation_checkpointing=true, zero.offload=cpu, or more GPUs",
        )
    return found.largest_micro_batch
