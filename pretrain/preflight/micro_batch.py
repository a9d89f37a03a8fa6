"""Choose the micro-batch of each phase where train.micro_batch is 0, as functions of settings and integers.

The largest that fits would be wrong twice: one of 300 examples cuts a share of 8,192 into 27 full passes and a rest,
and half of one is empty where the share is small. So it also divides what a rank has of each global batch. How many
examples fit is counted elsewhere: memory.py for a GPU; here for a CPU, which needs no torch.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from pretrain.config.batch_sizes import batch_sizes
from pretrain.config.phases import phases_of
from pretrain.config.settings import RunConfig

CPU_TOKENS = 4096
"""Tokens of a micro-batch on CPUs: the size at which training on CPUs was measured (docs/benchmarks.md); no larger ones
were. Memory is no guide: the ranks of a machine share it with all else, and keep what they freed (docs/faq.md)."""


def rank_shares(config: RunConfig, ranks: int) -> list[int]:
    """Return the sizes of a rank's share of a global batch of this phase, the largest rank's, ascending: one, or one
    per size of a ramp."""
    sizes = batch_sizes(config)
    wholes = range(sizes.first, sizes.full + 1, sizes.streams) if sizes.ramp else [sizes.full]
    return sorted({math.ceil(size / ranks) for size in wholes})


def dividing(shares: Sequence[int], fits: int) -> int:
    """Return the largest number of examples, at most `fits` and at most the smallest share, that divides all shares.
    If it is less than half of that bound (a share of 127 has the divisor 1 alone), the smallest share is cut into as
    few even parts as fit instead: the last pass of a share is then up to one part short."""
    most, common = min(fits, *shares), math.gcd(*shares)
    divisor = next(n for n in range(most, 0, -1) if common % n == 0)
    return divisor if 2 * divisor >= most else math.ceil(shares[0] / math.ceil(shares[0] / most))


def chosen(config: RunConfig, ranks: int, fits: int) -> int:
    """Return the micro-batch of this phase on `ranks` ranks on which `fits` examples fit."""
    return dividing(rank_shares(config, ranks), fits)


def on_cpus(config: RunConfig, ranks: int) -> RunConfig:
    """Return the run with a micro-batch for CPUs in each phase that leaves it to be chosen."""
    values = [
        chosen(phase.config, ranks, max(1, CPU_TOKENS // phase.config.data.sequence_length))
        for phase in phases_of(config)
    ]
    return with_micro_batches(config, values)


def with_micro_batches(config: RunConfig, values: Sequence[int]) -> RunConfig:
    """Return the run with train.micro_batch of each phase from `values`, in their order, where it was 0."""
    phases = [dict(changes) for changes in config.phases]
    for changes, phase, value in zip(phases, phases_of(config), values, strict=False):
        if not phase.config.train.micro_batch:
            changes["train"] = {**changes.get("train", {}), "micro_batch": value}
    train = replace(config.train, micro_batch=config.train.micro_batch or values[0])
    return replace(config, train=train, phases=phases)


def is_open(config: RunConfig) -> bool:
    """Return whether a micro-batch of the run is still to be chosen."""
    return any(not phase.config.train.micro_batch for phase in phases_of(config))
