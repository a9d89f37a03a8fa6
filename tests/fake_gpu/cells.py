"""A run of a precision, a ZeRO stage and a few more settings: it ends, and does not wait for the GPU as it trains."""

from pathlib import Path
from typing import NamedTuple

from pretended import trained

STEPS = 7
QUIET = [f"train.steps={STEPS}", "train.log_every=6", "train.checkpoint_every=100", "run.ranks=1"]
"""Step 1 and 6 are logged; the third to fifth do nothing but train."""
UNLOGGED = slice(2, 5)
"""The steps that neither compile nor log."""


class Cell(NamedTuple):
    """A run, and how often its host may wait for the GPU."""

    precision: str
    stage: int
    more: str
    """Settings, apart by blanks."""
    waits: int = 0
    """In a micro-batch, at most. By their Python stacks those that there are are DeepSpeed's: at stage 3 for its stream
    of reductions; offloaded below it, it looks at each tensor's gradient, whether it is finite."""

    def __str__(self) -> str:
        words = [word.partition(".")[2] for word in self.more.split()]
        return ", ".join([f"stage {self.stage}", self.precision, *words])


def ends_without_waits(cell: Cell, tiny: list[str], folder: Path, world: int = 1) -> None:
    """Train; fail unless the run ends, and its micro-batches wait no more often than the cell says."""
    chosen = [f"train.precision={cell.precision}", f"zero.stage={cell.stage}", *cell.more.split()]
    steps = trained(folder, STEPS, [*tiny, *QUIET, *chosen], world)
    assert len(steps) == STEPS
    for step in steps[UNLOGGED]:
        assert step["waits"] <= cell.waits * step["micro_batches"], step
        assert cell.waits or step["staged"] == 0, step
