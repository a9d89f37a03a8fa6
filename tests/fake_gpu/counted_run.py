"""`maskmill` with the counts of each step in a file: `python counted_run.py FILE train demo ...`, as the only rank.

A line of JSON a step: how many micro-batches it had and of how many tokens, spare ones included; what their forward and
backward passes did to the device, and the bytes of Inductor's kernels in them; and what all else of the step did: the
update, the log, evaluation and checkpoints where they are due.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from counts import Counts, read_counts, show_waits
from inductor_bytes import Traffic

from launch import cli
from pretrain import train
from pretrain.distributed.determinism import CUBLAS
from pretrain.monitoring.run_log import RunLog


class Steps:
    """Counts passes and steps by wrapping two functions of the loop."""

    def __init__(self, path: Path) -> None:
        self._path, self._passes, self._traffic = path, Counts(), Traffic()
        self._micro_batches = self._tokens = self._bytes = 0
        self._before = read_counts()

    def counted_passes(self, compute: Callable[..., bool]) -> Callable[..., bool]:
        """train.compute: forward and backward over a step's micro-batches."""

        def counted(run: Any, share: Any, counts: Any) -> bool:
            before, moved = read_counts(), self._traffic.bytes
            accepted = compute(run, share, counts)
            self._passes, self._micro_batches = read_counts().since(before), counts.micro_batches
            self._bytes = self._traffic.bytes - moved
            self._tokens = sum(micro_batch.tokens for micro_batch in share.ready)
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
                "tokens": self._tokens,
                "bytes": self._bytes,
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
    if "FAKE_GPU_STACKS" in os.environ:
        show_waits()
    sys.argv = ["maskmill", *sys.argv[2:]]
    cli.main()
