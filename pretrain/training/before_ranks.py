"""Check a run before any rank starts, claim its folder, and settle the micro-batches that its settings leave open.

`check_start` runs once, in one process, and writes nothing: in `maskmill train` before it starts the ranks, or, where a
launcher has started them, on the first rank. It does without torch, so that errors show within a second, and imports it
only where it must: to look at GPUs, to count the parameters or the memory of a model, to read the tasks of train.probe,
and to read a mirror. The ranks check what they alone can see: their GPUs, and whether they see the shards and the run
folder, which they open (start.py), and settle the micro-batches together.
"""

import secrets
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_pipeline.errors import UserError, printable
from data_pipeline.io.files import sealed_json, write_once, write_whole
from pretrain.checkpoint.store import checkpoints
from pretrain.config.phases import CPU_TOKENS, Phase, chosen, is_open, on_cpus, phases_of, with_micro_batches
from pretrain.config.settings import RunConfig
from pretrain.distributed.launch_env import is_launched, sees_gpus
from pretrain.objectives.registry import keeps_memory
from pretrain.preflight.check_run import Plan, check_room, check_run, run_identity, surely_has_room
from pretrain.preflight.gpus import counted_memory
from pretrain.run.files import CHECKPOINTS, CONFIG, LOGS, METRICS, RUN, folder_wait, wait_until_shown
from pretrain.run.folder import (
    FORMAT,
    SEALS_CONFIG,
    read_config,
    read_run,
    read_settings,
    read_summary,
    refuse_another,
    refuse_locked,
    sealed_config,
)
from pretrain.run.metrics_log import read_metrics
from pretrain.training.initial_weights_check import check_starting_weights

if TYPE_CHECKING:
    from pretrain.distributed.world import World


# Claim the folder of a run: check that it belongs to the run's identity, and count the attempt. This part never
# imports torch.


def check_folder(
    config: RunConfig, plans: list[Plan], say: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """Return this run's run.json from run.dir, or a new one; write nothing. Waits, with a line to `say`, if only that
    file of a run is not shown. Raises UserError if the folder holds something else."""
    folder, identity = Path(config.run.dir), run_identity(plans)
    wait_until_shown(lambda: folder / RUN if _lacks_run(folder) else None, folder_wait(config.run), say)
    run = read_run(folder)
    if run is not None and not checkpoints(folder) and not read_metrics(folder):
        run = None  # a first start that saved nothing: its settings may be corrected
    elif run is None and _holds_other_files(folder):
        raise UserError(
            "holds other files", where=folder, expected="a new or empty folder, or this run's own"
        )
    if run is None:
        run_id = config.monitor.id or secrets.token_hex(4)
        return {"format": FORMAT, "identity": identity, "id": run_id, "attempts": 0}
    if (folder / CONFIG).is_file():
        read_settings(
            folder
        )  # raises for one that was cut short: nothing may take its defaults for the run's
    if is_finished(folder):
        _refuse_more_steps(run["identity"], identity, folder)
    refuse_another(run["identity"], identity, folder, "choose another run.dir")
    return run


def is_finished(folder: Path) -> bool:
    """Return whether the run in this folder has completed all its steps."""
    return bool(read_summary(folder).get("status") == "finished")


def steps_done(folder: Path) -> int:
    """Return the number of steps of the finished run in this folder."""
    summary = read_summary(folder)
    return int(summary.get("steps") or summary.get("step") or 0)


def _refuse_more_steps(then: dict[str, Any], now: dict[str, Any], folder: Path) -> None:
    """Raise UserError, with the settings for more steps or minutes, if only their number differs."""
    differing = [key for key, value in now.items() if then.get(key, 0.0) != value]
    if not differing or any(not f".{key}".endswith((".train.steps", ".train.minutes")) for key in differing):
        return
    new = next(path for n in count(2) if not (path := folder.with_name(f"{folder.name}-{n}")).exists())
    more = now[differing[0]] - then.get(differing[0], 0)
    alone = len(differing) == 1 and differing[0].startswith("train.")
    added = f" {differing[0]}={more:g}" if alone and more > 0 else ""
    raise UserError(
        f"the run is finished at {_steps_of(then, differing)}, where its learning-rate schedule ends; "
        f"asked for are {_steps_of(now, differing)}",
        where=folder,
        remedy="to train on, start another run from its weights and moments: "
        f"run.dir={new} init_from={folder} init_moments=true{added}",
    )


def _steps_of(identity: dict[str, Any], keys: list[str]) -> str:
    return ", ".join(f"{key}={identity.get(key)}" for key in keys)


def _lacks_run(folder: Path) -> bool:
    """Return whether a run has been here but its run.json, which it wrote first, is not shown."""
    return not (folder / RUN).is_file() and _has_begun(folder)


def _has_begun(folder: Path) -> bool:
    return any((folder / name).exists() for name in (METRICS, CHECKPOINTS))


def _holds_other_files(folder: Path) -> bool:
    """Return whether the folder holds more than a failed start leaves behind (logs and hidden files)."""
    if not folder.is_dir():
        return folder.exists()
    return any(path.name != LOGS and not path.name.startswith(".") for path in folder.iterdir())


def open_run(config: RunConfig, plans: list[Plan]) -> dict[str, Any]:
    """Create the run folder if missing and count this attempt; only the first rank calls this. Returns the run's
    W&B `id`, and whether it is `finished`, at which `step`."""
    folder = Path(config.run.dir)
    is_known = (folder / RUN).is_file()
    run = check_folder(config, plans)
    finished = is_finished(folder)
    if not finished:
        folder.mkdir(parents=True, exist_ok=True)
        wait = folder_wait(config.run)
        if not is_known and not _is_first(folder, run, wait):
            # what else there is may come later still, and without it the run would count as one that saved nothing
            wait_until_shown(lambda: None if _has_begun(folder) else folder / METRICS, wait)
            run = check_folder(config, plans)
        run["attempts"] += 1
        write_whole(folder / CONFIG, sealed_config(config))
        run[SEALS_CONFIG] = (
            True  # said once it is true: a kill between the two leaves a run that can be resumed
        )
        write_whole(folder / RUN, sealed_json(run))
    step = steps_done(folder) if finished else 0
    return {"id": run["id"], "attempts": run["attempts"], "finished": finished, "step": step}


def _is_first(folder: Path, run: dict[str, Any], wait: float) -> bool:
    """Write run.json where this machine is shown none; return whether there was none indeed: a network folder may not
    show that of an attempt on another machine yet, but refuses to make it twice."""
    with suppress(FileNotFoundError):  # it is there, and not shown
        write_once(folder / RUN, sealed_json(run))
    wait_until_shown(lambda: None if (folder / RUN).is_file() else folder / RUN, wait)
    known = read_run(folder)
    return known is None or known["id"] == run["id"]


def seen_by_all(folder: Path, about: dict[str, Any], world: "World", wait: float) -> None:
    """Raise UserError on every rank if any rank cannot see the first rank's run folder within `wait` seconds. All ranks
    call this."""
    here = wait_until_shown(lambda: None if _is_attempt(folder, about) else folder / RUN, wait)
    blind = [rank for rank, sees in enumerate(world.gather(here)) if not sees]
    if blind:
        raise UserError(
            f"ranks {blind[:5]} do not see what the first rank wrote",
            where=folder,
            expected="a folder on storage that all nodes share",
        )


def _is_attempt(folder: Path, about: dict[str, Any]) -> bool:
    with suppress(OSError, UserError):  # replaced while it is read, or shown in part
        run = read_run(folder)
        return run is not None and (run["id"], run["attempts"]) == (about["id"], about["attempts"])
    return False


# Settle train.micro_batch where it is 0: the ranks do so before anything of the run is checked, written or built.
#
# A run that has begun keeps what it chose, at another number of ranks and on other GPUs too: the micro-batch is among
# the conditions of a bit-exact resume. Otherwise the first rank chooses, from the smallest GPU of all ranks, and the
# others are told: counted by each for itself, ranks with different GPUs would pack different micro-batches. From there
# on the settings hold the number, as if it had been given: in config.yaml, in checkpoints and on W&B.


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


# Check the run in one process, before any rank starts.


def check_start(config: RunConfig, ranks: int) -> str:
    """Return a message if nothing is left to do and `ranks` ranks need not start; empty otherwise. Raises UserError for
    anything that keeps the run from starting. Writes nothing."""
    if not is_launched():
        _check_gpus(ranks)
    plans = check_run(config, ranks)
    check_folder(config, plans, say=lambda line: print(printable(line), flush=True))
    folder = Path(config.run.dir)
    if is_finished(folder):
        return f"{config.run.dir}: finished at step {steps_done(folder):,}; nothing to do"
    refuse_locked(folder)
    if not checkpoints(folder) and not config.checkpoint.mirror:  # from which the run may be brought back
        check_starting_weights(config, plans[0])
    if is_open(config):
        choose(config, ranks, _room(ranks))
    for plan in plans:
        if keeps_memory(plan.phase.config):
            from pretrain.preflight.memory import check_stream_memory  # counts what torch modules take

            check_stream_memory(plan.phase.config, ranks, _room(ranks))
    _check_room(config, plans[0].index.vocabulary.size)
    _check_probe(config)
    return ""


def _check_gpus(ranks: int) -> None:
    if sees_gpus():
        from pretrain.distributed.world import check_gpus

        check_gpus(ranks)


def _room(ranks: int) -> float | None:
    """Return the bytes of a GPU to count with; None: the ranks are on CPUs."""
    return visible_memory(ranks) if sees_gpus() else None


def _check_probe(config: RunConfig) -> None:
    if config.train.probe:
        from pretrain.evaluate.probe import ProbeTask  # its tasks are built on torch

        ProbeTask.read(config.train.probe, Path(config.train.probe_data))


def _check_room(config: RunConfig, vocabulary_size: int) -> None:
    if not surely_has_room(config, vocabulary_size):
        from pretrain.preflight.memory import parameters_of  # the model itself says, which needs torch

        check_room(config, parameters_of(config, vocabulary_size))
