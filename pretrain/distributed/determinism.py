"""Make torch bitwise reproducible, and seed dropout by the position of each draw."""

import os
from collections.abc import Mapping

import torch

from data_pipeline.compiled import philox
from pretrain.config.settings import RunConfig
from pretrain.distributed.world import World


def seed_dropout(seed: int, batch: int, rank: int, micro_batch: int) -> None:
    """Seed torch's generators for the dropout of one micro-batch, so that no generator state needs saving."""
    torch.manual_seed(philox.text_key(f"dropout {seed} {batch} {rank} {micro_batch}") >> 1)


def own_cores(environment: Mapping[str, str], local_size: int) -> int:
    """Return this rank's number of cores: those it can run on, divided among the node's ranks. Under srun, as many
    as each rank was given, since Slurm may bind a rank to its own."""
    available = len(os.sched_getaffinity(0))
    given = environment.get("SLURM_CPUS_PER_TASK", "") if "RANK" not in environment else ""
    return min(available, int(given)) if given.isdecimal() and int(given) else max(1, available // local_size)


def set_threads(config: RunConfig, world: World) -> None:
    """Set this rank's CPU threads explicitly: sums depend on how work is split over threads."""
    torch.set_num_threads(config.run.threads or own_cores(os.environ, world.local_size))
    if config.train.deterministic:
        os.environ.setdefault(
            "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
        )  # without it cuBLAS may differ from run to run
    torch.use_deterministic_algorithms(config.train.deterministic, warn_only=True)
    # it would also have all new memory written once before use, which nothing reads
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
