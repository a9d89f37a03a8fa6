"""Forecast what a run needs on a cluster, how long it takes, and what does not add up."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from torch import nn

from data_pipeline.errors import UserError
from data_pipeline.index import INDEX, Index
from data_pipeline.mask_budget import MaskBudget, measured_note
from data_pipeline.storage import is_uri
from pretrain.config import RunConfig
from pretrain.optim.schedule import learning_rate, warmup_updates
from pretrain.phases import Phase, phases_of
from pretrain.planning.memory import RESERVED, States, meta_model, pass_peak, states
from pretrain.planning.timing import Cluster, StepTime, communication_bytes, step_time
from pretrain.precision import resolve_precision
from pretrain.throughput import training_flops

VOCABULARY = 30_522
"""Entries taken where neither shards nor a vocabulary say how many: BERT's."""
UTILISATION = 0.40
"""Share of the peak that the arithmetic is taken to reach, unless stated."""


class Text(NamedTuple):
    """What an example is like: from the shards, or full-length ones where there are none yet."""

    vocabulary: int
    examples: int  # 0: not known
    length: float  # mean tokens
    square: float  # mean squared tokens
    masked: float  # mean masked positions
    source: str
    capped: str  # what data.max_predictions takes from the mask rate, in words; empty: nothing


class Memory(NamedTuple):
    """Bytes on one GPU at one ZeRO stage."""

    stage: int
    states: States
    activations: int  # at the configured micro-batch
    largest_micro_batch: int  # examples of full length; 0: the states alone do not fit

    @property
    def total(self) -> int:
        return self.states.total + self.activations


@dataclass(frozen=True)
class Forecast:
    """What `maskmill plan` shows."""

    cluster: Cluster
    text: Text
    parameters: int
    precision: str
    memory: tuple[Memory, ...]
    micro_batches: int
    """Forward and backward passes a rank makes in a step."""
    moved: float
    """Bytes that go through collectives in a step."""
    step: StepTime
    utilisation: float
    tokens: float
    """Tokens of the whole run."""
    epochs: float
    """Passes over the shards; nan where they are not there yet."""
    seconds: float
    rates: tuple[float, ...]
    """The learning rate at evenly spaced updates, first and last included."""
    warnings: tuple[str, ...]


def forecast_phases(
    config: RunConfig, cluster: Cluster, utilisation: float = UTILISATION
) -> list[tuple[Phase, Forecast]]:
    """`forecast` for each phase of the run."""
    return [(phase, forecast(phase.config, cluster, utilisation)) for phase in phases_of(config)]


def forecast(config: RunConfig, cluster: Cluster, utilisation: float = UTILISATION) -> Forecast:
    """What training by `config` takes on `cluster`. Reads index.json if it is there, starts nothing.
    Raises UserError where there are more ranks than examples in a batch."""
    ranks, batch = cluster.ranks, config.train.global_batch
    if ranks > batch:
        raise UserError(
            f"{ranks} GPUs are more than train.global_batch={batch}",
            where="--nodes",
            expected="at least one example a GPU",
        )
    text = text_of(config)
    precision = resolve_precision(config, "cuda")
    model = meta_model(config, text.vocabulary)
    parameters = sum(p.numel() for p in model.parameters())
    memory = memory_by_stage(model, config, precision, cluster)
    share = math.ceil(batch / ranks)
    micro_batches = math.ceil(share * text.length / (config.train.micro_batch * config.data.sequence_length))
    peak = cluster.gpu.half_flops if precision != "fp32" else cluster.gpu.single_flops
    flops = training_flops(
        config.encoder,
        text.vocabulary,
        round(share * text.length),
        round(share * text.square),
        round(share * text.masked),
    )
    stage = config.zero.stage
    moved = communication_bytes(stage, parameters, micro_batches, 4, 4 if precision == "fp32" else 2)
    updated = parameters / (ranks if stage else 1)
    step = step_time(flops / (peak * utilisation), updated, moved, cluster)
    steps = config.train.steps
    found = Forecast(
        cluster=cluster,
        text=text,
        parameters=parameters,
        precision=precision,
        memory=memory,
        micro_batches=micro_batches,
        moved=moved,
        step=step,
        utilisation=utilisation,
        tokens=steps * batch * text.length,
        epochs=steps * batch / text.examples if text.examples else math.nan,
        seconds=steps * step.total,
        rates=tuple(
            learning_rate(round(i * (steps - 1) / 63), config.optim.lr, steps, config.schedule)
            for i in range(64)
        ),
        warnings=(),
    )
    return replace(found, warnings=tuple(_warnings(config, found)))


def text_of(config: RunConfig) -> Text:
    """Counts of the shards if there are any, full-length examples with the configured masks otherwise."""
    shards, budget = config.train.shards or config.data.out, MaskBudget.of(config.data)
    if shards and (is_uri(shards) or Path(shards, INDEX).is_file()):
        index = Index.load(shards)
        split = index.train
        mean = split.tokens / split.examples
        return Text(
            index.vocabulary.size,
            split.examples,
            mean,
            _mean_square(index, mean),
            split.masked / split.examples,
            f"the shards in {shards}",
            budget.note(split.longest) if config.data.dynamic_masking else measured_note(index),
        )
    length = config.data.sequence_length
    return Text(
        VOCABULARY,
        0,
        length,
        length**2,
        budget.count(length),
        "full-length examples: there are no shards at data.out yet",
        budget.note(length),
    )


def _mean_square(index: Index, mean: float) -> float:
    """From the histogram of lengths, each example at the middle of its bin."""
    counts = index.statistics.get("train", {}).get("length_histogram", [])
    if not sum(counts):
        return mean**2
    width = index.settings["sequence_length"] / len(counts)
    return sum(n * ((i + 0.5) * width) ** 2 for i, n in enumerate(counts)) / sum(counts)


def memory_by_stage(
    model: nn.Module, config: RunConfig, precision: str, cluster: Cluster
) -> tuple[Memory, ...]:
    """Memory at ZeRO stages 0 to 3, activations measured on the meta device at two sizes: they grow by a constant
    for each example more."""
    length = config.data.sequence_length
    masked = MaskBudget.of(config.data).count(length)
    few, many = (pass_peak(model, precision, n, length, masked) for n in (8, 16))
    slope = (many - few) / 8
    base = few - 8 * slope
    room = cluster.gpu.memory * (1 - RESERVED)
    found = []
    for stage in range(4):
        staged = replace(config, zero=replace(config.zero, stage=stage))
        kept = states(model, staged, precision, cluster.ranks)
        largest = max(0, math.floor((room - kept.total - base) / slope))
        found.append(Memory(stage, kept, round(base + slope * config.train.micro_batch), largest))
    return tuple(found)


def _warnings(config: RunConfig, found: Forecast) -> list[str]:
    train, ranks = config.train, found.cluster.ranks
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
            train.global_batch % ranks != 0,
            f"train.global_batch={train.global_batch} does not divide among {ranks} GPUs: some have one example "
            "more than others, and all wait for them",
        ),
        (
            train.global_batch / ranks < train.micro_batch and found.micro_batches == 1,
            f"a GPU's share of the batch, {train.global_batch / ranks:g} examples, does not fill "
            f"train.micro_batch={train.micro_batch}",
        ),
        (
            found.epochs > 40,
            f"the run goes {found.epochs:.0f} times through the shards: prepare more text, or mask anew at each "
            "epoch with data.dynamic_masking=true",
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
            warmup_updates(config.schedule.warmup, train.steps) > train.steps // 2,
            f"the warm-up takes {warmup_updates(config.schedule.warmup, train.steps):,} of {train.steps:,} steps",
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
    ]
    return [line for holds, line in checks if holds]
