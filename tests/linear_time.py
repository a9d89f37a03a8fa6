"""Whether work takes time in proportion to its size: for input that would otherwise cost its square."""

import gc
import time
from collections.abc import Callable

TRIES = 3
"""A busy machine may slow one try; what is quadratic is slow in all of them."""


def is_linear(work: Callable[[int], object], size: int = 200_000) -> bool:
    """Four times the size takes less than nine times as long: linear work takes 4 times, quadratic 16."""
    gc.collect()
    gc.freeze()  # what other tests left would be gone through, and counted, in the middle of this one
    try:
        return any(_seconds(work, 4 * size) < 9 * _seconds(work, size) + 0.5 for _ in range(TRIES))
    finally:
        gc.unfreeze()


def _seconds(work: Callable[[int], object], size: int) -> float:
    started = time.thread_time()  # servers of other tests run in threads of this process
    work(size)
    return time.thread_time() - started
