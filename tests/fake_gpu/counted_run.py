"""`maskmill` with the counts of each step in a file: `python counted_run.py FILE train demo ...`, as the only rank.

A line of JSON a step: how many micro-batches it had, what their forward and backward passes did to the device, and what
all else of the step did: the update, the log, evaluation and checkpoints where they are due.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from counts import Counts, read_counts

from launch import cli
from pretrain import train
from pretrain.distributed.determinism import CUBLAS
from pretrain.monitoring.run_log import RunLog


class Steps:
    """Counts passes and steps by wrapping two functions of the loop."""

    def __init__(self, path: Path) -> None:
        self._path, self._passes, self._micro_batches = path, Counts(), 0
        self._before = read_counts()

    def counted_passes(self, compute: Callable[..., bool]) -> Callable[..., bool]:
        """train.compute: forward and backward over a step's micro-batches."""

        def counted(run: Any, share: Any, counts: Any) -> bool:
            before = read_counts()
            accepted = compute(run, share, counts)
            self._passes, self._micro_batches = read_counts().since(before), counts.micro_batches
            return accepted

        return counted

    def counted_step(self, logged: Callable[..., None]) -> Callable[..., None]:
        """RunLog.step, which comes after the update."""

        def counted(run_log: RunLog, *arguments: Any) -> None:
            logged(run_log, *arguments)
            now = read_counts()
            whole, self._before = now.since(self._before), now
            line = {
                "micro_batches": self._micro_batches,
                "passes": self._passes._asdict(),
                "rest": whole.since(self._passes)._asdict(),
                "cublas_variable": CUBLAS in os.environ,
            }
            with self._path.open("a", encoding="utf-8") as file:
                print(json.dumps(line), file=file)

        return counted


if __name__ == "__main__":
    steps = Steps(Path(sys.argv[1]))
    train.compute = steps.counted_passes(train.compute)
    RunLog.step = steps.counted_step(RunLog.step)  # type: ignore[method-assign]
    sys.argv = ["maskmill", *sys.argv[2:]]
    cli.main()
