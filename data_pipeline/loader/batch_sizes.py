"""Compute how many examples each global batch holds, as pure functions of integers: all the same, or growing in a ramp.

A ramp of R batches from A to B examples, in multiples of the K streams, has n = (B - A) / K sizes below B, each for
R / n batches: batch t < R holds A + K floor(t n / R) examples, and from batch R on all hold B. So each size has as
many updates, as in ModernBERT's batch-size warm-up (Warner et al. 2024, arXiv 2412.13663, training settings). The order
of the data is that without a ramp, cut at other places.
"""

from math import gcd
from typing import NamedTuple

MOST_STREAMS = 256


class BatchSizes(NamedTuple):
    """The number of examples of each global batch, by its number from 0."""

    full: int
    """B, examples of a batch behind the ramp."""
    streams: int
    """K, a divisor of all sizes."""
    first: int = 0
    """A, examples of the first batch, if there is a ramp."""
    ramp: int = 0
    """R, batches of the ramp; 0: all batches are full."""

    @classmethod
    def of(
        cls, full: int, streams: int = 0, first: int = 0, ramp: int = 0, sequential: bool = False
    ) -> "BatchSizes":
        """Build the sizes; `streams` 0: as many as `default_streams` finds to divide them all."""
        return cls(full, streams or default_streams(gcd(full, first), sequential), first, ramp)

    def at(self, batch: int) -> int:
        """Return the number of examples in this global batch."""
        if batch >= self.ramp:
            return self.full
        return self.first + self.streams * (batch * self._raises // self.ramp)

    def before(self, batch: int) -> int:
        """Return the number of examples in all global batches before this one."""
        if not self.ramp:
            return batch * self.full
        inside, raises = min(batch, self.ramp), self._raises
        begins = (
            -(-number * self.ramp // raises) for number in range(1, raises + 1)
        )  # first batch of each raise
        raised = sum(inside - first for first in begins if first < inside)
        return inside * self.first + self.streams * raised + (batch - inside) * self.full

    @property
    def smallest(self) -> int:
        """Return the number of examples in the smallest batch, the first."""
        return self.at(0)

    @property
    def _raises(self) -> int:
        """Return n, how often the size grows, by one example per stream."""
        return (self.full - self.first) // self.streams


def default_streams(global_batch: int, sequential: bool = False) -> int:
    """Return the largest divisor of `global_batch` that is at most 256; in a sequential order, one stream per row."""
    if sequential:
        return global_batch
    return next(k for k in range(min(MOST_STREAMS, global_batch), 0, -1) if global_batch % k == 0)
