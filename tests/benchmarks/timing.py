"""Time one call."""

import time
from collections.abc import Callable


def seconds(action: Callable[[], object]) -> float:
    """Return the seconds of wall time that a call takes."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started
