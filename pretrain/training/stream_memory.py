"""Keep a model's memory of each data stream from one step to the next.

A stream is a row of the global batch that walks its documents in order (data.order=sequential), and each rank reads
some of them: their memory is on that rank, in the order of the streams' numbers. A checkpoint holds it as fragments
of one tensor per name, (streams, ...), so that a resume at any world size finds each stream's memory.

It is float32 whatever the training precision: that holds bf16 and fp16 exactly, so that a checkpoint has one type and a
run can go on in another precision. `maskmill plan` counts it.
"""

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from pretrain.checkpoint.store import Checkpoint, Damaged
from pretrain.distributed.world import World
from pretrain.model.batch import SPARE, MicroBatch
from pretrain.optim.flat_layout import Fragment

KIND = "memory"
"""Of its fragments in a checkpoint, and their entry in its state."""

Memory = dict[str, Tensor]
"""Name -> (examples, ...) float32, a row for each example of a micro-batch."""


class StreamMemory:
    """The memory of streams first..last-1 of `streams`; `shapes` of one stream's, by name (Objective.memory). Zero at
    the start."""

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        streams: int,
        first: int,
        last: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self._shapes, self._streams, self._first = shapes, streams, first
        # one extra row for spare examples, so that finding them needs no device sync
        self._rows = {
            name: torch.zeros((last - first + 1, *shape), device=device) for name, shape in shapes.items()
        }
        self._written: list[tuple[Tensor, Memory]] = []

    @classmethod
    def of_rank(cls, shapes: Mapping[str, tuple[int, ...]], streams: int, world: World) -> "StreamMemory":
        """Make the memory of this rank's streams, as the loader shares out as many examples."""
        first, last = (streams * rank // world.size for rank in (world.rank, world.rank + 1))
        return cls(shapes, streams, first, last, world.device)

    def read(self, batch: MicroBatch) -> Memory | None:
        """Read the memory of the micro-batch's streams, 0 for spare examples; None if the objective has no memory."""
        if not self._shapes:
            return None
        rows_E = self._places(batch)
        found = {name: rows.index_select(0, rows_E) for name, rows in self._rows.items()}
        spare_E = batch.streams == SPARE
        return {name: x.masked_fill(spare_E.view(-1, *[1] * (x.dim() - 1)), 0.0) for name, x in found.items()}

    def write(self, batch: MicroBatch, memory: Memory | None) -> None:
        """Store what the model returned for the micro-batch; it takes effect at `commit`."""
        if memory is not None and self._shapes:
            kept = {name: memory[name].detach().float() for name in self._shapes}
            self._written.append((self._places(batch), kept))

    def commit(self) -> None:
        """Apply what was written: the update of its global batch was applied."""
        for rows_E, memory in self._written:
            for name, values in memory.items():
                self._rows[name].index_copy_(0, rows_E, values)
        self._written = []

    def discard(self) -> None:
        """Drop what was written since the last commit: its global batch was skipped."""
        self._written = []

    def clear(self) -> None:
        """Forget everything."""
        self._written = []
        for rows in self._rows.values():
            rows.zero_()

    def fragments(self) -> Iterator[Fragment]:
        """List this rank's part of the memory, for a checkpoint."""
        for name, rows in self._rows.items():
            start = self._first * math.prod(self._shapes[name])
            if len(rows) > 1:
                yield Fragment(KIND, name, start, rows[:-1].reshape(-1))

    def state(self) -> dict[str, list[int]]:
        """Describe the whole memory, for a checkpoint: its shape by name."""
        return {name: [self._streams, *shape] for name, shape in self._shapes.items()}

    def load(self, checkpoint: Checkpoint) -> None:
        """Take this rank's part from a checkpoint, saved at any world size. Raises Damaged if it is missing or of
        other streams."""
        self.clear()
        if checkpoint.state.get(KIND, {}) != self.state():
            raise Damaged(
                f"holds a memory of {checkpoint.state.get(KIND, {})}",
                where=checkpoint.folder,
                expected=str(self.state()),
            )
        for name, rows in self._rows.items():
            size = math.prod(self._shapes[name])
            count = (len(rows) - 1) * size
            values = checkpoint.read(name, KIND, self._first * size, count)
            rows[:-1].copy_(values.view(rows[:-1].shape))

    def _places(self, batch: MicroBatch) -> Tensor:
        """Return (E,) int64, the row of each example's stream."""
        last = next(iter(self._rows.values())).shape[0] - 1
        return (batch.streams - self._first).masked_fill(batch.streams == SPARE, last)
