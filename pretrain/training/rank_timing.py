"""Measure when each rank computes and waits, and report what slowed the run down.

Every rank times its steps, data waits and forward passes, without device syncs. At a log step a few numbers per
rank are gathered to distinguish three cases:

    a data stall      some rank's loader had no share ready when it was asked for one
    a slow rank       its forward passes take longer, token for token, than those of the others
    an outlier        one step took much longer than the others

Forward passes represent compute time, since ranks wait for each other in backward passes. Under ZeRO-3 they wait in
forward passes as well, so slow ranks cannot be identified and are not reported.
"""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any, NamedTuple

import torch

from pretrain.distributed.world import World

clock = time.perf_counter
WINDOW, MIN_STEPS = 50, 5
"""Number of recent steps considered, and the minimum needed."""
DATA_SHARE = 0.05
"""Share of the time that a rank may wait for data before it is reported."""
SLOW = 1.3
"""Time per token, as a multiple of the other ranks' median, above which a rank is slow."""
OUTLIER = 2.0
"""Step time, as a multiple of the median, above which a step is an outlier."""


class Lap(NamedTuple):
    """One step on this rank; seconds."""

    step: int
    seconds: float
    waited: float
    forward: float
    tokens: int


class RankPace(NamedTuple):
    """Statistics of a rank's newest laps; seconds."""

    laps: int
    step: float  # median
    waited: float  # share of the time
    forward: float  # median
    a_token: float  # median forward time of a token
    worst: Lap  # the slowest of the laps since the last log step

    @staticmethod
    def of(row: list[Any]) -> "RankPace":
        """Build from plain values, as gathered."""
        laps, step, waited, forward, a_token, worst = row
        return RankPace(laps, step, waited, forward, a_token, Lap(*worst))


class Pace:
    """Times this rank's steps, except the first (warm-up) and those without an update."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self.new_phase()

    def new_phase(self) -> None:
        """Reset for a new phase, whose steps are not comparable."""
        self._laps: deque[Lap] = deque(maxlen=WINDOW)
        self._fresh: deque[tuple[Lap, list[Any]]] = deque(maxlen=WINDOW)  # the newest since the last `read`
        self._slowest: tuple[Lap, list[Any]] | None = None  # of all since then
        self._warm = False
        self.start()

    def start(self) -> None:
        """Start timing a step, before its data is requested."""
        self._began = clock()
        self._passes: list[Any] = []
        self._tokens = 0

    @contextmanager
    def forward(self, tokens: int) -> Iterator[None]:
        """Time a forward pass over the given number of tokens."""
        started = self._mark()
        yield
        self._passes.append((started, self._mark()))
        self._tokens += tokens

    def lap(self, step: int, waited: float) -> None:
        """End the step; `waited`: seconds that this rank waited for its data."""
        if self._warm:
            lap = Lap(step, clock() - self._began, waited, 0.0, self._tokens)
            self._fresh.append((lap, self._passes))
            if self._slowest is None or lap.seconds > self._slowest[0].seconds:
                self._slowest = (lap, self._passes)
        self._warm = True

    def read(self, world: World) -> tuple[dict[str, Any], list[str]]:
        """Return figures for the log and messages about slowdowns. Collective; call it when the device is idle."""
        fresh = [self._timed(*lap) for lap in self._fresh]
        worst = self._timed(*self._slowest) if self._slowest else Lap(0, 0.0, 0.0, 0.0, 0)
        self._laps.extend(fresh)
        self._fresh.clear()
        self._slowest = None
        rows = [RankPace.of(row) for row in world.gather(self._own(fresh, worst))]
        known = [row for row in rows if row.laps]
        if not fresh or len(known) < len(rows):
            return {}, []
        return figures(rows), slowdowns(rows)

    def _own(self, fresh: list[Lap], worst: Lap) -> list[Any]:
        if not fresh:
            return [0, 0.0, 0.0, 0.0, 0.0, worst]
        laps = list(self._laps)[-max(len(fresh), 2 * MIN_STEPS) :]
        seconds = sum(lap.seconds for lap in laps)
        return [
            len(laps),
            median(lap.seconds for lap in laps),
            sum(lap.waited for lap in laps) / max(seconds, 1e-9),
            median(lap.forward for lap in laps),
            median(lap.forward / max(lap.tokens, 1) for lap in laps),
            worst,
        ]

    def _timed(self, lap: Lap, passes: list[Any]) -> Lap:
        """Return the lap with its time in forward passes, which a GPU reports only once they are done."""
        return lap._replace(forward=sum(map(self._seconds, passes)))

    def _mark(self) -> Any:
        if not self._cuda:
            return clock()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _seconds(self, ends: tuple[Any, Any]) -> float:
        start, end = ends
        return start.elapsed_time(end) / 1e3 if self._cuda else end - start


def figures(rows: list[RankPace]) -> dict[str, Any]:
    """Compute step times over all ranks: median and slowest, in milliseconds, from each rank's median, and how much
    slower the slowest rank computes than the median of the others."""
    found: dict[str, Any] = {
        "step_ms_by_rank": [round(1e3 * row.step, 3) for row in rows],
        "forward_ms_by_rank": [round(1e3 * row.forward, 3) for row in rows],
        "step_ms": 1e3 * max(row.step for row in rows),
        "slowest_step_ms": 1e3 * max(row.worst.seconds for row in rows),
        "forward_ms": 1e3 * max(row.forward for row in rows),
    }
    if len(rows) > 1:
        rank, ratio = slowest(rows)
        found |= {"slowest_rank": rank, "slowest_rank_ratio": ratio}
    return found


def slowest(rows: list[RankPace]) -> tuple[int, float]:
    """Return the rank with the longest forward time per token, as a multiple of the other ranks' median."""
    rank = max(range(len(rows)), key=lambda r: rows[r].a_token)
    others = median(row.a_token for r, row in enumerate(rows) if r != rank)
    return rank, rows[rank].a_token / others if others > 0 else 1.0


def slowdowns(rows: list[RankPace]) -> list[str]:
    """Return one line per cause of a slowdown; empty without any."""
    if min(row.laps for row in rows) < MIN_STEPS:
        return []
    return [line for line in (_data_stall(rows), _slow_rank(rows), _outlier(rows)) if line]


def _data_stall(rows: list[RankPace]) -> str:
    shares = [row.waited for row in rows]
    rank = shares.index(max(shares))
    if shares[rank] <= DATA_SHARE:
        return ""
    others = [share for r, share in enumerate(shares) if r != rank]
    alone = others and max(others) < shares[rank] / 2
    who = f"rank {rank}, and not the others," if alone else f"rank {rank} most," if others else "the loader"
    milliseconds = 1e3 * shares[rank] * rows[rank].step
    return f"waiting for data: {who} {milliseconds:,.0f} ms of a step, {shares[rank]:.0%} of the time"


def _slow_rank(rows: list[RankPace]) -> str:
    if len(rows) == 1:
        return ""
    rank, ratio = slowest(rows)
    if ratio < SLOW or (ratio - 1) / ratio * rows[rank].forward < 0.02 * rows[rank].step:
        return ""
    own, rest = rows[rank].forward, median(row.forward for r, row in enumerate(rows) if r != rank)
    return (
        f"rank {rank} is {ratio:.1f}x slower than the median: {1e3 * own:,.0f} ms computing forward passes in a step, "
        f"the others {1e3 * rest:,.0f} ms"
    )


def _outlier(rows: list[RankPace]) -> str:
    rank = max(range(len(rows)), key=lambda r: rows[r].worst.seconds)
    worst, usual = rows[rank].worst, rows[rank].step
    if worst.seconds < OUTLIER * usual:
        return ""
    lost = worst.seconds - usual
    same = [(r, row) for r, row in enumerate(rows) if row.worst.step == worst.step]
    waiting, computing = (max(same, key=key) for key in (_waited, _more_forward))
    if _waited(waiting) > lost / 2:
        cause = f"of which rank {waiting[0]} was waiting for data for {1e3 * _waited(waiting):,.0f} ms"
    elif _more_forward(computing) > lost / 4:  # the backward pass, which takes twice as long, is not timed
        milliseconds = 1e3 * computing[1].worst.forward
        cause = f"of which rank {computing[0]} was computing forward passes for {milliseconds:,.0f} ms"
    else:
        cause = "in neither data nor forward passes: backward passes, communication, or the machine"
    return (
        f"an outlier: step {worst.step:,} took {1e3 * worst.seconds:,.0f} ms, {worst.seconds / usual:.1f}x the median, "
        f"{cause}"
    )


def _waited(rank: tuple[int, RankPace]) -> float:
    return rank[1].worst.waited


def _more_forward(rank: tuple[int, RankPace]) -> float:
    return rank[1].worst.forward - rank[1].forward
