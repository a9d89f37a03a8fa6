"""Size Slurm jobs: cores and host memory of training ranks and single-process jobs, tasks of a preparation."""

import math
from pathlib import PurePosixPath

from data_pipeline.io.decompress import reading
from data_pipeline.io.files import is_uri
from data_pipeline.masking.budget import MaskBudget
from data_pipeline.settings import DataSettings
from data_pipeline.sources.listing import files_of
from pretrain.config.phases import on_cpus, phases_of
from pretrain.config.settings import RunConfig

GPU_RANK_CORES = 6
"""Busy threads of a rank with a GPU: the training loop, autograd's backward pass, the loader, the
checkpoint writer and NCCL's proxy; and one for threads that mostly wait, such as watchdogs and W&B."""
TASKS_PER_ARRAY = 16
"""Default tasks of each array of a preparation with arrays."""
MAX_BYTES_WITHOUT_ARRAYS = 4 << 30
"""Maximum text, over all passes, that one process prepares without arrays: a few minutes on four cores."""
TEXT_PER_COMPRESSED_BYTE = 4
"""Approximate bytes of text per byte of a compressed file."""
WORKER_GIB = 2
"""Memory of a worker of the preparation, and of the process that starts them."""

_GIB = 1 << 30
_GPU_RANK_BASE = (
    6 * _GIB
)  # Python, torch, a CUDA context and its libraries, pinned micro-batches, blocks of shards
_CPU_RANK_BASE = 2 * _GIB
_VOCABULARY = 30_522
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".parquet")


def rank_cores(config: RunConfig, gpus: int, cores: int) -> int:
    """Return the cores of a rank; on CPUs as many as run.threads, or else `cores`, compute with."""
    return GPU_RANK_CORES if gpus else config.run.threads or cores


def node_gib(config: RunConfig, gpus: int, ranks: int, local_ranks: int) -> int:
    """Compute the GiB of host memory of a node with `local_ranks` of the `ranks`, for the phase that needs the most."""
    return math.ceil(
        local_ranks
        * max(_rank_bytes(phase.config, gpus, ranks) for phase in phases_of(on_cpus(config, ranks)))
        / _GIB
    )


def _rank_bytes(config: RunConfig, gpus: int, ranks: int) -> float:
    """Estimate the host memory of a rank: the model as each rank makes it before it is sharded; the copies of
    masters and moments that a checkpoint is written from; with zero.offload the optimizer; on CPUs everything that a
    GPU would hold."""
    from pretrain.preflight.memory import meta_model, pass_cost, states

    model = meta_model(config, max(config.vocabulary.size, _VOCABULARY))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    share = parameters / (ranks if config.zero.stage else 1)
    needed = 4 * parameters + 12 * share
    if config.zero.offload == "cpu":
        needed += 16 * share
    if gpus:
        return _GPU_RANK_BASE + needed
    kept, length = states(model, config, "fp32", ranks).total, config.data.sequence_length
    masked = MaskBudget.of(config.data).count(length)
    activations = pass_cost(model, "fp32", config.train.micro_batch, length, masked).peak
    return _CPU_RANK_BASE + needed + kept + 1.5 * activations  # attention on a CPU takes more than on a GPU


def vocabulary_gib(config: RunConfig) -> int:
    """Estimate the GiB of host memory for `maskmill vocab`: the sample and its derived data (data.sample_mb sets its
    size)."""
    times = 4 if config.vocabulary.kind == "wordpiece" else 50
    return math.ceil((2e9 + times * config.vocabulary.sample_mb * 1e6) / _GIB)


def export_gib(config: RunConfig) -> int:
    """Estimate the GiB of host memory for `maskmill export`: masters, both models and the output, in fp32."""
    from pretrain.preflight.memory import meta_model

    model = meta_model(config, max(config.vocabulary.size, _VOCABULARY))
    return math.ceil(4 + 16 * sum(parameter.numel() for parameter in model.parameters()) / _GIB)


def text_bytes(settings: DataSettings) -> int | None:
    """Estimate the bytes of text in the sources, all passes counted; None if some are in an object store. Raises
    UserError if a local one is missing."""
    size, remote = 0, False
    for source in settings.sources:
        if is_uri(source):
            remote = True  # the submitting user may have no credentials, and the request is slow
            continue
        with reading(source):
            files = files_of(source)
        size += sum(
            file.size * (TEXT_PER_COMPRESSED_BYTE if _is_compressed(file.uri) else 1) for file in files
        )
    return None if remote else round(size * settings.dupe_factor * max(settings.weights, default=1.0))


def _is_compressed(name: str) -> bool:
    return PurePosixPath(name).suffix in _COMPRESSED


def tasks_of(datas: list[DataSettings], tasks: int) -> int:
    """Return the tasks of each array: `tasks` if above 0; otherwise 1, meaning one process without arrays, for
    little text, or TASKS_PER_ARRAY. Raises UserError if a source is missing."""
    sizes = [text_bytes(data) for data in datas]
    if tasks:
        return tasks
    return TASKS_PER_ARRAY if any(size is None or size > MAX_BYTES_WITHOUT_ARRAYS for size in sizes) else 1
