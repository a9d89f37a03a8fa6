"""Make torch bitwise reproducible, and seed dropout by the position of each draw."""

import os
from collections.abc import Mapping

import torch

from pretrain.config.settings import RunConfig
from pretrain.distributed.launch_env import srun_cores
from pretrain.distributed.world import World

CUBLAS, CUBLAS_MEMORY = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"


def own_cores(environment: Mapping[str, str], sharing: int, local_size: int = 1) -> int:
    """Return this rank's number of cores: those it can run on, divided among the `sharing` ranks that can. Under srun,
    as many as each of the node's `local_size` ranks was given, since Slurm need not bind a rank to its own."""
    available = len(os.sched_getaffinity(0))
    given, _ = srun_cores(environment, local_size)
    return min(available, given) if given else max(1, available // sharing)


def unstated_threads(config: RunConfig, world: World, environment: Mapping[str, str]) -> str:
    """Say that the number of threads, on which sums and so weights depend, follows from what srun was not told; empty
    where it was told, or run.threads is set, and outside srun."""
    given, is_stated = srun_cores(environment, world.local_size)
    if not given or is_stated or config.run.threads:
        return ""
    return (
        f"srun has no --cpus-per-task, so each rank computes with {torch.get_num_threads()} of its node's threads; "
        "slurm/train.sbatch passes the job's on, and another number gives weights that are equal within rounding: "
        "set run.threads, or srun's --cpus-per-task"
    )


def ranks_sharing_cores(world: World) -> int:
    """Count the ranks of this node, this one included, that can run on some of its cores: all of them, or fewer if the
    launcher has bound each to cores of its own. Collective."""
    mine = sum(1 << core for core in os.sched_getaffinity(0))
    of_ranks = world.gather([world.node, hex(mine)])
    return sum(node == world.node and bool(int(cores, 16) & mine) for node, cores in of_ranks)


def set_threads(config: RunConfig, world: World) -> None:
    """Set this rank's CPU threads explicitly: sums depend on how work is split over threads. Collective."""
    sharing = ranks_sharing_cores(world)
    torch.set_num_threads(config.run.threads or own_cores(os.environ, sharing, world.local_size))


def set_arithmetic(config: RunConfig) -> None:
    """Have torch choose deterministic kernels as configured, and sum products of half precision in fp32. An operation
    that has no such kernel then raises RuntimeError, which names it."""
    if config.train.deterministic:
        os.environ.setdefault(CUBLAS, CUBLAS_MEMORY)  # without it torch refuses products on CUDA
    # No mere warning: with one, CUDA's attention keeps its backward pass that adds in any order. Not by
    # use_deterministic_algorithms, which imports torch.compile to tell it, too; compile_model does, where one compiles.
    torch.set_deterministic_debug_mode("error" if config.train.deterministic else "default")
    # it would also have all new memory written once before use, which nothing reads
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    # where a product is split along its sum, its parts would be added in half precision
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False


def settle_products(device: torch.device) -> None:
    """On CUDA, take the variable that `set_arithmetic` has set out of the environment again, once torch has seen it.

    To allow products among deterministic kernels torch asks for it a single time, at the first one; but it parses it
    with a regular expression at each, which takes half of the host's time. cuBLAS is deterministic without it, since
    torch gives it memory of its own for each stream. Where torch asks again the variable stays."""
    if device.type == "cuda" and os.environ.get(CUBLAS) == CUBLAS_MEMORY:
        _multiply(device)
        del os.environ[CUBLAS]
        try:
            _multiply(device)
        except RuntimeError:
            os.environ[CUBLAS] = CUBLAS_MEMORY


def _multiply(device: torch.device) -> None:
    square = torch.ones(16, 16, device=device)
    _ = square @ square
