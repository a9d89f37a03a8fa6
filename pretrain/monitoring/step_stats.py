"""Average what global batches held and took into the figures of a line of metrics.jsonl.

They are those of the whole global batch, averaged over the steps since the last line.
"""

import time
from typing import Any

from pretrain.distributed.world import World
from pretrain.preflight.check_run import Plan
from pretrain.run.machine import peak_memory
from pretrain.training.batch_counts import BatchCounts
from pretrain.training.loss_meter import LossMeter
from pretrain.training.rank_timing import Pace


class StepStats:
    """Adds up accepted batches on every rank; `read` empties it. `peak`: FLOP/s of all ranks' devices, 0 where it is
    not known."""

    def __init__(self, world: World, peak: float) -> None:
        self.meter, self.pace = LossMeter(), Pace(world.device)
        self._world, self._peak = world, peak
        self.reset()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to read."""
        return not self._counts

    def reset(self) -> None:
        """The time of the next line begins now."""
        self._counts: list[BatchCounts] = []
        self._since = time.perf_counter()

    def forget(self) -> None:
        """The batches since the last line are undone."""
        self.meter.forget()
        self.reset()

    def add(self, step: int, counts: BatchCounts) -> None:
        """An accepted step."""
        self._counts.append(counts)
        self.pace.lap(step, counts.waited)

    def leave_out(self, seconds: float) -> None:
        """What was not training time."""
        self._since += seconds

    def read(self, plan: Plan) -> dict[str, Any]:
        """Means of losses and accuracies; tokens and examples a second; `mfu`, the share of the peak that the model's
        arithmetic came to; `fill`, the share of the micro-batches' token budgets that was used; GB of memory on the
        rank that has most; what training/rank_timing.py knows. None for what is unknown. All ranks call this
        together."""
        means = self.meter.read(self._world)
        here = (
            time.perf_counter() - self._since,
            sum(c.waited for c in self._counts),
            peak_memory(self._world.device),
        )
        seconds, waited, memory = (max(values) for values in zip(*self._world.gather(here), strict=True))
        paces, slowdowns = self.pace.read(self._world)
        tokens, squares, masked, examples, slots = (
            sum(getattr(c, name) for c in self._counts)
            for name in ("tokens", "squares", "masked", "examples", "micro_batches")
        )
        index, micro_batch = plan.index, plan.phase.config.train.micro_batch
        budget = slots * self._world.size * micro_batch * index.settings["sequence_length"]
        flops = plan.objective.flops(index.vocabulary.size, tokens=tokens, squares=squares, masked=masked)
        return {
            **means,
            "tokens_per_s": tokens / seconds,
            "examples_per_s": examples / seconds,
            "mfu": flops / seconds / self._peak if self._peak else None,
            "padding_share": 0.0,  # packed: no example is padded; what a micro-batch leaves empty is 1 - fill
            "fill": tokens / budget,
            "data_wait_share": waited / seconds,
            **paces,
            "slowdowns": slowdowns or None,
            "memory_gb": memory,
        }
