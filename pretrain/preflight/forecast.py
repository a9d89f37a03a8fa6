"""Forecast the memory and time of each phase of a run on a cluster, and warn about what does not fit."""

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from data_pipeline.io.files import is_uri
from data_pipeline.loader.batch_sizes import BatchSizes
from data_pipeline.masking.budget import MaskBudget
from data_pipeline.shards.index import INDEX, Index, measured_note
from pretrain.config.phases import (
    Phase,
    batch_sizes,
    chosen,
    is_open,
    phases_of,
    refuse_idle_ranks,
    with_micro_batches,
)
from pretrain.config.settings import RunConfig
from pretrain.distributed.launch_env import resolve_precision
from pretrain.objectives.registry import load
from pretrain.optim.schedule import Progress, learning_rate
from pretrain.preflight.gpus import CALIBRATED
from pretrain.preflight.memory import Memory, memory_by_stage, meta_model, pass_peaks
from pretrain.preflight.step_time import (
    Cluster,
    StepTime,
    StepWork,
    collectives_per_step,
    communication_bytes,
    host_seconds,
    layers_of,
    step_time,
)
from pretrain.preflight.warnings import run_warnings

# Warnings about problems in a forecast, with what to change.


def warnings_of(phase: Phase, found: "Forecast") -> list[str]:
    """Return lines about settings of the phase that do not fit or may be unintended."""
    config, ranks = phase.config, found.cluster.ranks
    train = config.train
    here = found.memory[config.zero.stage]
    checks = [
        (
            found.precision == "bf16" and not found.cluster.gpu.has_bf16,
            f"{found.cluster.gpu.name} has no bf16: train.precision=fp16 (with zero.stage=1 or more)",
        ),
        (
            here.largest_micro_batch == 0,
            f"zero.stage={here.stage}: weights and optimizer state alone take {here.states.total / 1e9:.1f} GB of "
            f"{found.cluster.gpu.memory / 1e9:.0f}: a higher stage, more GPUs, or larger ones",
        ),
        (
            0 < here.largest_micro_batch < train.micro_batch,
            f"train.micro_batch={train.micro_batch} does not fit: at most {here.largest_micro_batch} at "
            f"zero.stage={here.stage}",
        ),
        (
            here.largest_micro_batch >= 2 * train.micro_batch and found.micro_batches > 1,
            f"train.micro_batch={train.micro_batch} leaves memory unused: {here.largest_micro_batch} fit, and a "
            f"step has {found.micro_batches} of them",
        ),
        (
            bool(found.text.capped),
            found.text.capped,
        ),
        (
            0 < found.epochs < 1,
            f"the run ends after {found.epochs:.0%} of the shards",
        ),
        (
            found.step.communication > found.step.arithmetic,
            "communication takes longer than arithmetic: larger batches a GPU, fewer nodes or faster links",
        ),
        (
            config.zero.stage >= 2 and found.micro_batches > 4,
            f"zero.stage={config.zero.stage} sends gradients at each of the {found.micro_batches} micro-batches of "
            "a step; stage 1 sends them once",
        ),
        (
            config.zero.stage == 3
            and ranks > 1
            and found.micro_batches > 1
            and found.memory[1].largest_micro_batch >= train.micro_batch,
            f"zero.stage=3 gathers the weights in each of the {found.micro_batches} micro-batches of a step; stage 1 "
            f"fits as well, with {found.memory[1].total / 1e9:.0f} GB of {found.cluster.gpu.memory / 1e9:.0f}, and "
            "gathers them once",
        ),
    ]
    fill = train.global_batch / ranks * found.text.length / (train.micro_batch * config.data.sequence_length)
    return [line for holds, line in checks if holds] + run_warnings(phase, ranks, fill, found.epochs)


# The forecast of a phase.

DEFAULT_UTILISATION = 0.40
"""Assumed share of the peak, where it is neither stated nor measured on such a GPU."""


class Text(NamedTuple):
    """Length statistics of the examples: from the shards, or full-length examples where there are none yet."""

    vocabulary: int
    examples: int  # 0: unknown
    length: float  # mean tokens
    square: float  # mean squared tokens
    masked: float  # mean masked positions
    source: str
    capped: str  # how data.max_predictions limits the mask rate, in words; empty: not at all


@dataclass(frozen=True)
class Forecast:
    """What `maskmill plan` shows."""

    cluster: Cluster
    text: Text
    parameters: int
    precision: str
    memory: tuple[Memory, ...]
    micro_batch: int
    """train.micro_batch; where that is 0, what the ranks would choose."""
    micro_batches: int
    """Forward and backward passes per rank and step."""
    moved: float
    """Bytes per step through collectives."""
    step: StepTime
    utilisation: float
    calibrated: bool
    """Whether utilisation was measured on this kind of GPU."""
    steps: int
    """train.steps, or as many as fit into train.minutes."""
    tokens: float
    """Tokens of the whole run."""
    epochs: float
    """Passes over the shards; nan if there are no shards yet."""
    seconds: float
    """Of the whole run; a smaller batch of a ramp counts by its examples."""
    rates: tuple[float, ...]
    """The learning rate at evenly spaced updates, including the first and the last."""
    warnings: tuple[str, ...]


def forecast_phases(
    config: RunConfig, cluster: Cluster, utilisation: float = 0.0
) -> list[tuple[Phase, Forecast]]:
    """Return the `forecast` of each phase of the run."""
    return [(phase, forecast(phase, cluster, utilisation)) for phase in phases_of(config)]


def forecast(phase: Phase, cluster: Cluster, utilisation: float = 0.0) -> Forecast:
    """Forecast training this phase on `cluster`. `utilisation`: share of the peak that the arithmetic reaches; 0: the
    measured or assumed value for the GPU. Reads index.json if it exists and starts nothing. Raises UserError if there
    are more ranks than examples in a batch."""
    config, ranks, batch = phase.config, cluster.ranks, phase.config.train.global_batch
    sizes = batch_sizes(config)
    refuse_idle_ranks(config, ranks, "--nodes")
    text = text_of(config)
    precision = resolve_precision(config, "cuda")
    model = meta_model(config, text.vocabulary)
    parameters = sum(p.numel() for p in model.parameters())
    peaks = pass_peaks(model, config, precision)
    memory = memory_by_stage(model, config, precision, cluster.gpu.memory, ranks, peaks)
    if is_open(config):
        fits = max(1, memory[config.zero.stage].largest_micro_batch)  # if none does, the warnings say so
        config = with_micro_batches(config, [chosen(config, ranks, fits)])
        phase = replace(phase, config=config)
        memory = memory_by_stage(model, config, precision, cluster.gpu.memory, ranks, peaks)
    utilisation = utilisation or CALIBRATED.get(cluster.gpu.name, DEFAULT_UTILISATION)
    share = math.ceil(batch / ranks)
    micro_batches = math.ceil(share * text.length / (config.train.micro_batch * config.data.sequence_length))
    peak = cluster.gpu.half_flops if precision != "fp32" else cluster.gpu.single_flops
    objective = load(config)
    flops = objective.flops(
        text.vocabulary,
        tokens=round(share * text.length),
        squares=round(share * text.square),
        masked=round(share * text.masked),
    )
    stage = config.zero.stage
    weight_bytes = 4 if precision == "fp32" else 2
    scattered = (
        precision != "bf16" or config.zero.offload == "cpu"
    )  # else stage 1 is BF16_Optimizer (distributed/engine.py)
    moved = communication_bytes(stage, parameters, micro_batches, 4, weight_bytes, scattered)
    work = StepWork(
        arithmetic=flops / (peak * utilisation),
        updated=parameters / (ranks if stage else 1),
        moved=moved,
        host=host_seconds(layers_of(model), micro_batches),
        collectives=collectives_per_step(stage, parameters, micro_batches, config.encoder.layers),
    )
    step = step_time(work, cluster)
    steps = config.train.steps or steps_in(60 * config.train.minutes, step.total, sizes)
    examples = sizes.before(steps)
    found = Forecast(
        cluster=cluster,
        text=text,
        parameters=parameters,
        precision=precision,
        memory=memory,
        micro_batch=config.train.micro_batch,
        micro_batches=micro_batches,
        moved=moved,
        step=step,
        utilisation=utilisation,
        calibrated=cluster.gpu.name in CALIBRATED,
        tokens=examples * text.length,
        epochs=examples / text.examples if text.examples else math.nan,
        steps=steps,
        seconds=examples / batch * step.total,
        rates=tuple(rate_of(phase, round(i * (steps - 1) / 63), steps) if steps else 0.0 for i in range(64)),
        warnings=(),
    )
    return replace(found, warnings=tuple(warnings_of(phase, found)))


def steps_in(seconds: float, a_full_step: float, sizes: BatchSizes) -> int:
    """Return how many steps fill so many seconds; a smaller batch of a ramp takes time by its examples."""
    full = seconds / a_full_step
    return bisect_left(range(math.ceil(full) + sizes.ramp), full * sizes.full, key=sizes.before)


def fitting(config: RunConfig, ranks: int, room: float) -> Memory:
    """Compute the memory of one of `ranks` GPUs of `room` bytes in the phase with these settings."""
    precision = resolve_precision(config, "cuda")
    model = meta_model(config, text_of(config).vocabulary)
    peaks = pass_peaks(model, config, precision)
    return memory_by_stage(model, config, precision, room, ranks, peaks)[config.zero.stage]


def rate_of(phase: Phase, step: int, steps: int = 0) -> float:
    """Compute the learning rate of the update after `step` updates of this phase; `steps`: as many as train.minutes
    are expected to reach."""
    config = phase.config
    at = Progress((phase.first or 0) - phase.schedule_first + step, phase.schedule_steps)
    if config.train.minutes:
        at = Progress(step / steps, 1.0, in_updates=False)
    return learning_rate(at, config.optim.lr, config.schedule)


def text_of(config: RunConfig) -> Text:
    """Return the statistics of the shards if there are any, else of full-length examples with the configured masks."""
    shards, budget = config.train.shards or config.data.out, MaskBudget.of(config.data)
    if shards and (is_uri(shards) or Path(shards, INDEX).is_file()):
        index = Index.load(shards)
        split = index.train
        mean = split.tokens / split.examples
        return Text(
            index.vocabulary.size,
            split.examples,
            mean,
            mean**2 + (index.length_variance or 0.0),
            split.masked / split.examples,
            f"the shards in {shards}",
            budget.note(split.max_tokens) if config.data.dynamic_masking else measured_note(index),
        )
    length = config.data.sequence_length
    return Text(
        _vocabulary_size(config),
        0,
        length,
        length**2,
        budget.count(length),
        "full-length examples: there are no shards at data.out yet",
        budget.note(length),
    )


def _vocabulary_size(config: RunConfig) -> int:
    """Return the size of the vocabulary, or the size that it will have if it is still to be trained."""
    named = Path(config.data.vocab)
    if config.data.vocab and named.exists():
        from data_pipeline.vocabulary.files import holds_vocabulary, load_vocabulary  # needs tokenizers

        if named.is_file() or holds_vocabulary(named):
            return load_vocabulary(named).size
    return config.vocabulary.size
