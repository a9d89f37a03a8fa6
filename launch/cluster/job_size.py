"""Size Slurm jobs: cores and host memory of a training's ranks and of jobs of one process, tasks of a preparation."""

import math
from pathlib import PurePosixPath

from data_pipeline.io.decompress import reading
from data_pipeline.io.files import is_uri
from data_pipeline.masking.mask_budget import MaskBudget
from data_pipeline.settings import DataSettings
from data_pipeline.sources.listing import files_of
from pretrain.config.phases import phases_of
from pretrain.config.settings import RunConfig

GPU_RANK_CORES = 6
"""Threads of a rank with a GPU that work at the same time: the training loop, autograd's backward pass, the loader, the
writer of checkpoints and NCCL's proxy; and one for what mostly waits, as watchdogs and W&B."""
TASKS_PER_ARRAY = 16
"""Tasks of each array of a preparation that has arrays."""
MAX_BYTES_WITHOUT_ARRAYS = 4 << 30
"""Text, over all passes, that one process prepares without arrays: a few minutes on four cores."""
TEXT_PER_COMPRESSED_BYTE = 4
"""Bytes of text in a byte of a compressed file, about."""
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
    """Cores of a rank; on CPUs as many as run.threads, or else `cores`, compute with."""
    return GPU_RANK_CORES if gpus else config.run.threads or cores


def node_gib(config: RunConfig, gpus: int, ranks: int, local_ranks: int) -> int:
    """GiB of host memory of a node with `local_ranks` of the `ranks`: the phase that needs most of it."""
    return math.ceil(
        local_ranks * max(_rank_bytes(phase.config, gpus, ranks) for phase in phases_of(config)) / _GIB
    )


def _rank_bytes(config: RunConfig, gpus: int, ranks: int) -> float:
    """The model as each rank makes it before it is shared out; the copies of masters and moments that a checkpoint is
    written from; with zero.offload the optimizer; on CPUs everything that a GPU would hold."""
    from pretrain.preflight.memory import meta_model, pass_peak, states

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
    activations = pass_peak(model, "fp32", config.train.micro_batch, length, masked)
    return _CPU_RANK_BASE + needed + kept + 1.5 * activations  # attention on a CPU takes more than on a GPU


def vocabulary_gib(config: RunConfig) -> int:
    """GiB of host memory for `maskmill vocab`: the sample, and what is made of it (data.sample_mb says how much)."""
    times = 4 if config.vocabulary.kind == "wordpiece" else 50
    return math.ceil((2e9 + times * config.vocabulary.sample_mb * 1e6) / _GIB)


def export_gib(config: RunConfig) -> int:
    """GiB of host memory for `maskmill export`: masters, both models and what is written, in fp32."""
    from pretrain.preflight.memory import meta_model

    model = meta_model(config, max(config.vocabulary.size, _VOCABULARY))
    return math.ceil(4 + 16 * sum(parameter.numel() for parameter in model.parameters()) / _GIB)


def text_bytes(settings: DataSettings) -> int | None:
    """About how many bytes of text the sources hold, all passes counted; None where some are in an object store.
    Raises UserError where a local one is not there."""
    size, remote = 0, False
    for source in settings.sources:
        if is_uri(source):
            remote = True  # whoever submits may have no key, and asking takes a while
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
    """Tasks of each array: `tasks` where that is above 0, else 1, which stands for one process without arrays, for
    little text, and TASKS_PER_ARRAY. Raises UserError where a source is not there."""
    sizes = [text_bytes(data) for data in datas]
    if tasks:
        return tasks
    return TASKS_PER_ARRAY if any(size is None or size > MAX_BYTES_WITHOUT_ARRAYS for size in sizes) else 1
