"""Check a run before any rank starts, in one process and without torch, so that errors show within a second.

The ranks check the same again, since a launcher may have started them elsewhere.
"""

from pathlib import Path

from data_pipeline.errors import printable
from pretrain.checkpoint.store import checkpoints
from pretrain.config.phases import is_open
from pretrain.config.settings import RunConfig
from pretrain.distributed.launch_env import sees_gpus
from pretrain.objectives.registry import keeps_memory
from pretrain.preflight.check_run import check_run, surely_has_room
from pretrain.training.claim_folder import check_folder, is_finished, refuse_locked, steps_done
from pretrain.training.initial_weights.check_source import check_starting_weights
from pretrain.training.settled_micro_batch import choose, visible_memory


def check_start(config: RunConfig) -> str:
    """Return a message if nothing is left to do and run.ranks ranks need not start; empty otherwise. Raises
    UserError for anything the ranks would reject. Writes nothing."""
    _check_gpus(config.run.ranks)
    plans = check_run(config, config.run.ranks)
    check_folder(config, plans, say=lambda line: print(printable(line), flush=True))
    folder = Path(config.run.dir)
    if is_finished(folder):
        return f"{config.run.dir}: finished at step {steps_done(folder):,}; nothing to do"
    refuse_locked(folder)
    if not checkpoints(folder) and not config.checkpoint.mirror:  # from which the run may be brought back
        check_starting_weights(config, plans[0])
    if is_open(config):
        choose(config, config.run.ranks, _room(config))
    for plan in plans:
        if keeps_memory(plan.phase.config):
            from pretrain.preflight.memory import check_stream_memory  # counts what torch modules take

            check_stream_memory(plan.phase.config, config.run.ranks, _room(config))
    _check_room(config, plans[0].index.vocabulary.size)
    _check_probe(config)
    return ""


def _check_gpus(ranks: int) -> None:
    if sees_gpus():
        from pretrain.distributed.world import check_gpus

        check_gpus(ranks)


def _room(config: RunConfig) -> float | None:
    """Return the bytes of a GPU to count with; None: the ranks are on CPUs."""
    return visible_memory(config.run.ranks) if sees_gpus() else None


def _check_probe(config: RunConfig) -> None:
    if config.train.probe:
        from pretrain.evaluate.probe import ProbeTask  # its tasks are built on torch

        ProbeTask.read(config.train.probe, Path(config.train.probe_data))


def _check_room(config: RunConfig, vocabulary_size: int) -> None:
    if not surely_has_room(config, vocabulary_size):
        from pretrain.preflight.check_run import check_room
        from pretrain.preflight.memory import parameters_of  # the model itself says, which needs torch

        check_room(config, parameters_of(config, vocabulary_size))
