"""Warn about problems in a forecast, with what to change."""

from typing import TYPE_CHECKING

from pretrain.config.phases import Phase
from pretrain.optim.schedule import updates

if TYPE_CHECKING:
    from pretrain.preflight.forecast import Forecast


def warnings_of(phase: Phase, found: "Forecast") -> list[str]:
    """Return lines about settings of the phase that do not fit or may be unintended."""
    config, ranks = phase.config, found.cluster.ranks
    train, warmup = config.train, updates(config.schedule.warmup, phase.schedule_steps)
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
            f"the run goes {found.epochs:.0f} times through the shards: prepare more text, or re-mask at each "
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
            warmup > phase.schedule_steps // 2,
            f"the warm-up takes {warmup:,} of {phase.schedule_steps:,} steps",
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
    return [line for holds, line in checks if holds]
