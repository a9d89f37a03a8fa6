"""Run attempts of runs at given world sizes and settings, and record the global batches that each rank saw.

Real processes call the real training, one attempt after the other, so that torch and DeepSpeed are imported once.
"""

import inspect
import io
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import pairwise
from typing import Any

from ranks import run


@dataclass(frozen=True)
class Attempt:
    """One start of `maskmill train` on so many ranks."""

    ranks: int
    settings: list[str]
    recipe: str = "demo"
    copy_of: str = ""
    """A run folder whose copy this attempt goes on with."""
    fp16: bool = False
    """Half precision on a CPU, which settings refuse as slow. The loss scale starts at 2**22, which overflows, and
    grows after every second step, so that it moves in a short run."""
    before: Callable[[], None] | None = None
    """Called on each rank before, to register an objective of the test's, say."""


@dataclass
class Seen:
    """What the ranks of an attempt saw and said."""

    batches: dict[int, int] = field(default_factory=dict)
    """Global batch -> a digest of its examples and masks that does not depend on how it was shared out."""
    output: str = ""
    """What the first rank printed."""
    seconds: float = 0.0


def run_attempts(attempts: list[Attempt], timeout: float = 900) -> list[Seen]:
    """Run them one after the other. Raises RankFailed with the traceback of a rank that did not come through."""
    from torch.distributed import TCPStore

    most = max(attempt.ranks for attempt in attempts)
    stores = [TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for _ in attempts]
    by_rank = run(_run_all, most, attempts, [store.port for store in stores], timeout=timeout)
    seen = []
    for number in range(len(attempts)):
        one = Seen(output=by_rank[0][number][1], seconds=by_rank[0][number][2])
        for rank in by_rank:
            for batch, digest in rank[number][0].items():
                one.batches[batch] = (one.batches.get(batch, 0) + digest) % 2**64
        seen.append(one)
    return seen


def _run_all(attempts: list[Attempt], ports: list[int]) -> list[tuple[dict[int, int], str, float]]:
    from deepspeed.accelerator import get_accelerator
    from rich.console import Console

    from data_pipeline.errors import EXIT_STOPPED
    from launch.recipe import load_config
    from pretrain import train
    from pretrain.distributed import engine
    from pretrain.distributed.watchdog import Watchdog
    from pretrain.preflight import check_run

    rank, found = int(os.environ["RANK"]), []
    seen: dict[int, int] = {}
    counted, precision, deepspeed = train.with_batch_counts, check_run._precision, engine.deepspeed_settings

    def restless(config: Any, name: str, zero: dict[str, Any]) -> dict[str, Any]:
        scale = {
            "fp16": {"enabled": True, "initial_scale_power": 22, "loss_scale_window": 2, "hysteresis": 1}
        }
        return deepspeed(config, name, zero) | (scale if name == "fp16" else {})

    def watched(*arguments: Any) -> Iterator[Any]:
        for share, counts in counted(*arguments):
            seen[share.batch] = _digest(share)
            yield share, counts

    train.with_batch_counts, engine.deepspeed_settings = watched, restless
    for attempt, port in zip(attempts, ports, strict=True):
        seen, output, started = {}, io.StringIO(), time.perf_counter()
        if rank < attempt.ranks:
            size = str(attempt.ranks)
            os.environ.update(WORLD_SIZE=size, LOCAL_WORLD_SIZE=size, MASTER_PORT=str(port))
            if attempt.before is not None:
                attempt.before()
            config = load_config(attempt.recipe, attempt.settings)
            if attempt.copy_of and rank == 0:
                shutil.copytree(attempt.copy_of, config.run.dir)
            _as_if_started()
            get_accelerator().is_fp16_supported = lambda attempt=attempt: attempt.fp16
            check_run._precision = (lambda config: "fp16") if attempt.fp16 else precision
            try:
                train.train(
                    config, Console(file=output, width=500), "maskmill train demo", Watchdog(config.run)
                )
            except SystemExit as error:
                assert error.code == EXIT_STOPPED  # noqa: PT017 (it need not be raised)
        found.append((dict(seen), output.getvalue(), time.perf_counter() - started))
    return found


def _as_if_started() -> None:
    """Undoes what DeepSpeed leaves in a process, for ranks that skipped an attempt must agree with the others again:
    its numbers of modules and parameters, and stage 3's linear layer, under which gradients are ready in another order
    (stage 2 reduces them in that order, and does not look whose they are)."""
    from deepspeed.runtime.zero.parameter_offload import DeepSpeedZeRoOffload
    from deepspeed.runtime.zero.partition_parameters import Init, InsertPostInitMethodToModuleSubClasses
    from torch.nn import functional

    Init.param_id = 0
    numbers: Any = inspect.unwrap(DeepSpeedZeRoOffload._register_deepspeed_module).__defaults__
    numbers[0][0] = 0
    functional.linear = getattr(InsertPostInitMethodToModuleSubClasses, "linear_bk", functional.linear)


def _digest(share: Any) -> int:
    total = 0
    for packed in share.micro_batches:
        for example, (low, high) in enumerate(pairwise(packed.cu_seqlens.tolist())):
            masked = (packed.masked_index >= low) & (packed.masked_index < high)
            text = blake2b(digest_size=8)
            for column in (
                packed.input_ids[low:high],
                packed.segment_ids[low:high],
                packed.masked_index[masked] - low,
                packed.masked_ids[masked],
                packed.labels[example : example + 1],
            ):
                text.update(column.tobytes() + b"|")
            total += int.from_bytes(text.digest(), "little")
    return total % 2**64
