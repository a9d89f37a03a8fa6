"""Average the statistics of global batches into the figures of a line of metrics.jsonl.

The figures cover the whole global batch, averaged over the steps since the last line.
"""

import time
from typing import Any

from pretrain.distributed.world import World
from pretrain.preflight.check_run import Plan
from pretrain.run.machine import peak_memory
from pretrain.training.guard import LossMeter
from pretrain.training.progress import BatchCounts
from pretrain.training.rank_timing import Pace


class StepStats:
    """Sum accepted batches on every rank; `read` resets it. `peak`: FLOP/s of all ranks' devices, 0 if unknown."""

    def __init__(self, world: World, peak: float) -> None:
        self.meter, self.pace = LossMeter(), Pace(world.device)
        self._world, self._peak = world, peak
        self.reset()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to read."""
        return not self._counts

    def reset(self) -> None:
        """Start the time of the next line now."""
        self._counts: list[BatchCounts] = []
        self._since = time.perf_counter()

    def forget(self) -> None:
        """Drop the batches since the last line."""
        self.meter.forget()
        self.reset()

    def add(self, step: int, counts: BatchCounts) -> None:
        """Add an accepted step."""
        self._counts.append(counts)
        self.pace.lap(step, counts.waited)

    def leave_out(self, seconds: float) -> None:
        """Subtract time that was not spent training."""
        self._since += seconds

    def read(self, plan: Plan) -> dict[str, Any]:
        """Return means of losses and accuracies; `global_batch`, the examples of the newest step; tokens and examples
        per second; `mfu`, the share of the peak reached by the model's arithmetic; `fill`, the share of the
        micro-batches' token budgets that was used; maximum GB of memory over ranks; the figures of
        training/rank_timing.py. None for unknown values. All ranks call this together."""
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
            "global_batch": self._counts[-1].examples,
            "tokens_per_s": tokens / seconds,
            "examples_per_s": examples / seconds,
            "mfu": flops / seconds / self._peak if self._peak else None,
            "padding_share": 0.0,  # packed: no example is padded; unused space in a micro-batch is 1 - fill
            "fill": tokens / budget,
            "data_wait_share": waited / seconds,
            **paces,
            "slowdowns": slowdowns or None,
            "memory_gb": memory,
        }
