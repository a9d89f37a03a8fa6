"""Count repeated examples from 64-bit hashes, added in parts, in bounded memory."""

import numpy as np
from numpy.typing import NDArray

KEPT = 1 << 24
"""Maximum hashes kept, 128 MB (twice that while they are sorted); beyond it, a sample is kept."""


class Repeats:
    """Counts repeats exactly up to KEPT examples; beyond, only among hashes that end in enough zero bits that at
    most KEPT remain. Equal examples have equal hashes, so the sample holds all copies of every example in it."""

    def __init__(self, most: int = KEPT) -> None:
        self.most, self.zeros = most, 0
        self._parts: list[NDArray[np.uint64]] = []
        self._kept = 0

    def add(self, hashes: NDArray[np.uint64]) -> None:
        """Add the hashes of more examples."""
        self._parts.append(self._sampled(hashes))
        self._kept += len(self._parts[-1])
        while self._kept > self.most:
            self.zeros += 1
            self._parts = [self._sampled(part) for part in self._parts]
            self._kept = sum(map(len, self._parts))

    def result(self) -> dict[str, int | float]:
        """Return `examined` examples, one in `one_in` of all; the `share` of them that repeat an earlier one; and
        `most_copies`, the maximum copies of one example."""
        hashes = np.sort(np.concatenate([np.zeros(0, np.uint64), *self._parts]))
        firsts = np.flatnonzero(np.append(True, hashes[1:] != hashes[:-1])) if len(hashes) else hashes
        copies = np.diff(np.append(firsts, len(hashes)))
        return {
            "examined": len(hashes),
            "one_in": 2**self.zeros,
            "share": 1 - len(firsts) / len(hashes) if len(hashes) else 0.0,
            "most_copies": int(copies.max()) if len(hashes) else 0,
        }

    def _sampled(self, hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
        if not self.zeros:
            return hashes
        return hashes[hashes & np.uint64((1 << self.zeros) - 1) == 0]
