"""Choose which checkpoints to keep from their steps and held-out losses."""

import math
from collections.abc import Mapping

from pretrain.config.phases import phases_of
from pretrain.config.settings import RunConfig


def kept(losses: Mapping[int, float | None], config: RunConfig) -> set[int]:
    """Choose the checkpoints to keep by checkpoint.keep, keep_every and keep_best. `losses`: held-out loss by step,
    None if not evaluated at that step. The newest is always kept."""
    settings = config.checkpoint
    steps = sorted(losses)
    staying = set(steps[-settings.keep :])
    for phase in phases_of(config) if settings.keep_every else ():
        apart = settings.keep_every * phase.config.train.checkpoint_every
        first, last = phase.first or 0, math.inf if phase.last is None else phase.last  # where unknown: any
        staying |= {step for step in steps if apart and first < step <= last and step % apart == 0}
    known = {step: loss for step, loss in losses.items() if loss is not None}
    if settings.keep_best and known:
        # of equal ones, the later: it has trained longer
        staying.add(min(known, key=lambda step: (known[step], -step)))
    return staying
