"""`maskmill` with the counts of each step in a file: `python counted_run.py FOLDER train demo ...`, as a rank.

The file is FOLDER/counts-RANK.jsonl.

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
from pretrain.distributed import deepspeed_patches
from pretrain.distributed.world import CUBLAS
from pretrain.monitoring.run_log import RunLog


class Steps:
    """Counts passes and steps by wrapping functions of the loop and of the engine."""

    def __init__(self, path: Path) -> None:
        self._path, self._passes, self._traffic = path, Counts(), Traffic()
        self._micro_batches = self._tokens = self._bytes = 0
        self._before = read_counts()
        self._norms: dict[str, int] = {}

    def counted_norms(self, norm_on_flat_buffer: Callable[..., None]) -> Callable[..., None]:
        """Of how many tensors DeepSpeed takes the norm behind norm_on_flat_buffer, and how many it clips."""

        def counted(wrapper: Any, device: Any) -> None:
            norm_on_flat_buffer(wrapper, device)
            given = getattr(wrapper, "get_grads_for_norm", None)

            def gradients(for_clipping: bool = False) -> Any:
                found = given(for_clipping)
                self._norms["clipped" if for_clipping else "measured"] = len(
                    found if for_clipping else found[0]
                )
                return found

            if given is not None:
                wrapper.get_grads_for_norm = gradients

        return counted

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
                "norms": self._norms,
                "cublas_variable": CUBLAS in os.environ,
            }
            with self._path.open("a", encoding="utf-8") as file:
                print(json.dumps(line), file=file)

        return counted


if __name__ == "__main__":
    steps = Steps(Path(sys.argv[1]) / f"counts-{os.environ['RANK']}.jsonl")
    train.compute = steps.counted_passes(train.compute)
    deepspeed_patches.norm_on_flat_buffer = steps.counted_norms(deepspeed_patches.norm_on_flat_buffer)
    RunLog.step = steps.counted_step(RunLog.step)  # type: ignore[method-assign]
    if "FAKE_GPU_STACKS" in os.environ:
        show_waits()
    sys.argv = ["maskmill", *sys.argv[2:]]
    cli.main()
