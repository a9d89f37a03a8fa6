"""Warn about settings that are allowed but may be unintended, in `maskmill plan` and at the start of a run alike."""

from pretrain.config.phases import Phase
from pretrain.huggingface.registry import export_warnings
from pretrain.objectives.registry import load
from pretrain.optim.schedule import updates

MAX_EPOCHS = 40
LEAST_FILL = 0.5
"""Of a micro-batch, by what a rank has of the global batch."""


def run_warnings(
    phase: Phase, ranks: int, fill: float, epochs: float, validation_examples: int | None = None
) -> list[str]:
    """Return a line for each doubtful setting of a phase on `ranks` ranks.

    `fill`: the fraction of a micro-batch that a rank's part of the global batch fills, above 1 where it needs several;
    `epochs`: passes over the shards, nan where there are none yet; `validation_examples`: those held out in the shards,
    None where there are none yet."""
    config, steps = phase.config, phase.schedule_steps
    train, warmup = config.train, updates(config.schedule.warmup, steps)
    checks = [
        (
            train.global_batch % ranks != 0,
            f"train.global_batch={train.global_batch} does not divide among {ranks} ranks: some have an example more "
            "than others, who wait for them",
        ),
        (
            fill < LEAST_FILL,
            f"a rank's part of the global batch, {train.global_batch / ranks:g} examples, fills {fill:.0%} of "
            f"train.micro_batch={train.micro_batch}",
        ),
        (
            epochs > MAX_EPOCHS,
            f"the run goes {epochs:,.0f} times through the shards: prepare more text or with a larger "
            "data.dupe_factor, or re-mask at each epoch with data.dynamic_masking=true",
        ),
        (
            warmup > steps // 2,
            f"the warm-up takes {warmup:,} of {steps:,} steps",
        ),
        (
            validation_examples == 0 and train.eval_every > 0,
            "train.eval_every is set, and the shards hold nothing to evaluate on: data.held_out=0.01, say",
        ),
    ]
    return [line for holds, line in checks if holds] + export_warnings(config, load(config).families)
