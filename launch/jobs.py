"""Plan the jobs of a recipe's stages, from text to model, for the size of a cluster, with their cores and memory.

    vocab -> prepare (discover -> read (array) -> plan -> gather (array) -> write (array) -> finish) -> train -> export

A stage is one entry of STAGES: a check for whether it is done, and the jobs that do it. Jobs run one after the
other. Nothing is started here.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from data_pipeline.errors import UserError
from data_pipeline.io.decompress import reading
from data_pipeline.io.files import exists, is_uri, join
from data_pipeline.masking.budget import MaskBudget
from data_pipeline.settings import DataSettings, required
from data_pipeline.shards.index import INDEX, Index
from data_pipeline.sources.listing import files_of
from data_pipeline.vocabulary.files import holds_vocabulary, load_vocabulary
from pretrain.config.phases import data_of_phases, on_cpus, phases_of
from pretrain.config.settings import RunConfig
from pretrain.report.status import FINISHED, RUNNING, STARTING, exported_model, read_status
from pretrain.run.files import LOGS

# Size the jobs: cores and host memory of training ranks and single-process jobs, tasks of a preparation.


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
    """Estimate the GiB of host memory for `maskmill vocab`: the sample and its derived data (vocabulary.sample_mb sets
    its size)."""
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


# Define a request, its jobs, and a stage.


@dataclass(frozen=True)
class Size:
    """The cluster resources that the jobs request."""

    nodes: int = 1
    """Nodes of the training."""
    gpus_per_node: int = 8
    """GPUs per node, one rank per GPU; 0: training on CPUs."""
    ranks_per_node: int = 0
    """Ranks per node; 0: one per GPU."""
    tasks: int = 0
    """Tasks of each array of the preparation; 0: chosen by the size of the text."""
    cpus: int = 4
    """Cores of such a task, and of single-process jobs."""

    @property
    def local_ranks(self) -> int:
        """Ranks per node."""
        return self.ranks_per_node or max(1, self.gpus_per_node)

    @property
    def ranks(self) -> int:
        """Ranks of the training."""
        return self.nodes * self.local_ranks


class Job(NamedTuple):
    """One sbatch call. It waits for the previous job."""

    stage: str
    """The entry of STAGES that it belongs to."""
    name: str
    script: str
    """Script in the folder slurm/."""
    options: list[str]
    """Options of sbatch."""
    arguments: list[str]
    """Arguments of the script."""
    environment: dict[str, str]
    """Environment in addition to that of the submitting process."""
    log: Path
    """Path of its log; sbatch replaces %j with the job number."""


@dataclass(frozen=True)
class Request:
    """A request to run a recipe's stages on a cluster."""

    config: RunConfig
    recipe: str
    overrides: list[str]
    size: Size = field(default_factory=Size)

    @property
    def logs(self) -> Path:
        """The folder for logs: that of the run."""
        return Path(self.config.run.dir).absolute() / LOGS

    def job(
        self, stage: str, script: str, options: list[str], words: list[str], name: str = "", **env: str
    ) -> Job:
        """Build a job with these arguments; `env` is its environment."""
        name = name or stage
        log = self.logs / (f"{name}-%A_%a.log" if any("--array" in o for o in options) else f"{name}-%j.log")
        return Job(stage, name, script, options, words, env, log)

    def one_process(self, verb: str, gib: int, *words: str) -> list[Job]:
        """Build the job of a verb that runs in one process, with `gib` of memory; `words` are its arguments."""
        options = [f"--cpus-per-task={self.size.cpus}", f"--mem={gib}G"]
        return [self.job(verb, "verb.sbatch", options, [verb, *words])]

    @property
    def words(self) -> list[str]:
        """Return the recipe as arguments of a verb."""
        return [self.recipe, *self.overrides]


class Stage(NamedTuple):
    """A stage between text and model."""

    done: Callable[[Request], str]
    """Returns why there is nothing to do; empty if there is. Raises UserError for what cannot be done."""
    jobs: Callable[[Request], list[Job]]


# Check for each stage whether it is done, and build the jobs that do it.


def prepared(request: Request) -> str:
    """Return where the shards of all phases are; empty unless they exist with these settings."""
    folders = []
    for phase in phases_of(request.config):
        train, data = phase.config.train, phase.config.data
        folder = train.shards or required(data.out, "data.out", "a folder for the shards")
        if not exists(join(folder, INDEX)):
            if train.shards:
                Index.load(folder)  # says what is missing: preparing would not make it there
            return ""
        from pretrain.preflight.check_run import check_data

        check_data(phase.config, Index.load(folder), folder)
        if not train.shards:
            _check_sources(data)
        folders.append(folder)
    return f"shards are there: {', '.join(dict.fromkeys(folders))}"


def _check_sources(data: DataSettings) -> None:
    """Raise UserError if the text is no longer that of the shards. The submitting machine may not see the text."""
    from data_pipeline.sources.snapshot import what_changed

    try:
        changed = what_changed(data) if data.sources else ""
    except UserError:
        return
    if changed:
        raise UserError(
            f"holds other data: {changed}", where=data.out, remedy="choose another data.out, or remove it"
        )


def with_vocabulary(request: Request) -> str:
    """Return why no vocabulary is to be learned: it exists, or the shards do; otherwise empty."""
    if prepared(request):
        return "the shards have their vocabulary"
    path = Path(required(request.config.data.vocab, "data.vocab", "a folder for the vocabulary"))
    if not path.exists() or (path.is_dir() and not holds_vocabulary(path)):
        _with_sources(request)
        return ""
    load_vocabulary(path)
    return f"a vocabulary is there: {path}"


def trained(request: Request) -> str:
    """Return that the run is finished; empty if it is not. Raises UserError while it is running."""
    config, ranks = request.config, request.size.ranks
    folder = required(config.run.dir, "run.dir", "a folder for the run")
    for phase in phases_of(config):
        if ranks > phase.config.train.global_batch:
            raise UserError(
                f"{request.size.nodes} nodes of {request.size.local_ranks} ranks are {ranks} ranks, more than "
                f"train.global_batch={phase.config.train.global_batch}",
                where=f"phase {phase.name}" if phase.name else "settings",
                expected="at least one example a rank",
                remedy="fewer nodes or ranks, or a larger batch",
            )
    status = read_status(Path(folder))
    if status.health in (STARTING, RUNNING):
        raise UserError("this run is in progress", where=folder, remedy=f"see `maskmill status {folder}`")
    return f"the run is finished: {folder}" if status.health == FINISHED else ""


def exported(request: Request) -> str:
    """Return where the model is; empty unless it is from the finished run's last step."""
    model = exported_model(read_status(Path(request.config.run.dir)))
    return f"the model is there: {model}" if trained(request) and model else ""


def _with_sources(request: Request) -> int:
    """Return the tasks of each array for the sources (`tasks_of`). Raises UserError if there are none, or if a local
    one is missing."""
    datas = data_of_phases(request.config)
    for data in datas:
        if not data.sources:
            raise UserError("is empty", where="data.sources", expected="the text to learn from")
    return tasks_of(datas, request.size.tasks)


def vocabulary_jobs(request: Request) -> list[Job]:
    """Build the job that learns the vocabulary, in one process."""
    return request.one_process("vocab", vocabulary_gib(request.config), *request.words)


def preparation_jobs(request: Request) -> list[Job]:
    """Build the jobs that slurm/prepare.sbatch would submit, or the one job if one process does it all."""
    tasks = _with_sources(request)
    datas, size = data_of_phases(request.config), request.size
    undivided = any(data.mode == "exact" or data.executor == "dask" for data in datas)
    if undivided or (tasks == 1 and not size.tasks):
        given = max(data.workers for data in datas)
        # if Slurm does not bind jobs to their cores, a process sees all cores of the node
        counted = [] if undivided or given else [f"data.workers={size.cpus}"]
        gib = WORKER_GIB * (max(given, size.cpus) + 1)
        return request.one_process("prepare", gib, *request.words, *counted)
    array = [f"--cpus-per-task={size.cpus}", f"--mem-per-cpu={WORKER_GIB}G", f"--array=0-{tasks - 1}"]
    alone = ["--cpus-per-task=1", f"--mem={WORKER_GIB}G"]
    repeats = any(data.duplicates != "keep" for data in datas)
    kinds = {
        "discover": alone,
        **({"fingerprint": array, "repeats": array} if repeats else {}),
        "read": array,
        "plan": ["--cpus-per-task=1", "--mem=8G"],
        "gather": array,
        "write": array,
        "finish": alone,
    }
    return [
        request.job(
            "prepare",
            "prepare.sbatch",
            ["--time=04:00:00", *options],
            request.words,
            name,
            MASKMILL_STAGE=name,
            MASKMILL_SHARES=str(tasks if options is array else 1),
        )
        for name, options in kinds.items()
    ]


def training_jobs(request: Request) -> list[Job]:
    """Build the job of all ranks, on all nodes; their logs go to the run folder."""
    size, config = request.size, request.config
    options = [
        f"--nodes={size.nodes}",
        f"--ntasks-per-node={size.local_ranks}",
        f"--gpus-per-node={size.gpus_per_node}",
        f"--cpus-per-task={rank_cores(config, size.gpus_per_node, size.cpus)}",
        f"--mem={node_gib(config, size.gpus_per_node, size.ranks, size.local_ranks)}G",
    ]
    return [request.job("train", "train.sbatch", options, request.words, LOGS=str(request.logs))]


def export_jobs(request: Request) -> list[Job]:
    """Build the job that exports the newest checkpoint of the run folder, named so that it cannot clash with a
    recipe."""
    return request.one_process(
        "export", export_gib(request.config), str(Path(request.config.run.dir).absolute())
    )


STAGES = {
    "vocab": Stage(with_vocabulary, vocabulary_jobs),
    "prepare": Stage(prepared, preparation_jobs),
    "train": Stage(trained, training_jobs),
    "export": Stage(exported, export_jobs),
}
"""All stages by name, in order. A new entry adds a stage."""
