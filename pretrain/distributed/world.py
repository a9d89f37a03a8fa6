"""Determine this process's rank and device, connect the ranks, and make torch bitwise reproducible.

The World is built once, by the entry point, from the launcher's environment, and passed down.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from data_pipeline.errors import EXIT_USER_ERROR, UserError
from pretrain.config.settings import RunConfig
from pretrain.distributed.launch_env import DEFAULT_PORT, place, srun_cores

Found = TypeVar("Found")


@dataclass(frozen=True)
class World:
    """The ranks of a run, seen from one of them."""

    rank: int = 0
    """0 to size - 1, over all nodes."""
    size: int = 1
    """Ranks of the run."""
    local_rank: int = 0
    """0 to local_size - 1, on this node."""
    local_size: int = 1
    """Ranks on this node."""
    node: int = 0
    """Number of this node."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    """Where this rank computes."""
    address: str = ""
    """Host of rank 0; empty for a single process."""
    port: int = DEFAULT_PORT
    """Port of rank 0."""
    timeout: timedelta = timedelta(minutes=30)
    """How long a rank waits for the others."""
    messages: Any = field(default=None, repr=False, compare=False)
    """gloo group of the small CPU messages below; None before `start` and for a single process."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> "World":
        """Build the world that the launcher's variables describe. Starts nothing.

        Raises UserError for variables that contradict each other and for ranks without a GPU of their own.
        """
        variables = os.environ if environment is None else environment
        world = cls(**place(variables))
        if not 0 <= world.rank < world.size or not 0 <= world.local_rank < world.local_size:
            raise UserError(
                f"rank {world.rank} of {world.size}, local rank {world.local_rank} of {world.local_size}",
                where="launcher",
                expected="ranks from 0 up to, not including, their number",
            )
        return replace(world, device=_device(world))

    def start(self, timeout: timedelta = timedelta(minutes=30)) -> "World":
        """Connect the ranks (NCCL on CUDA, else gloo) and return the world that can send messages."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        if not dist.is_initialized():
            _connect(self, timeout)
        if self.size == 1 or self.messages is not None:
            return self
        group = dist.new_group(backend="gloo", timeout=timeout)
        return replace(self, timeout=timeout, messages=group)

    def stop(self) -> None:
        """Close the connections; a no-op without any."""
        if dist.is_initialized():
            dist.destroy_process_group()

    # Small CPU messages, on a group of their own: they never wait behind, nor disturb the order of, the
    # collectives of the training step. All ranks call them in the same order.

    def broadcast(self, value: Any = None) -> Any:
        """Send rank 0's `value` to every rank, as JSON, so that nothing received is ever executed."""
        return self.gather(value if self.rank == 0 else None)[0] if self.size > 1 else value

    def gather(self, value: Any) -> list[Any]:
        """Gather the `value` of each rank, in rank order, on every rank, as JSON."""
        if self.size == 1:
            return [value]
        text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(lengths, torch.tensor([len(text)]), group=self.messages)
        longest = max(int(length) for length in lengths)
        texts = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.size)]
        dist.all_gather(texts, torch.nn.functional.pad(text, (0, longest - len(text))), group=self.messages)
        return [
            json.loads(bytes(text[: int(length)].numpy()))
            for text, length in zip(texts, lengths, strict=True)
        ]

    def together(self, action: Callable[[], Any]) -> list[Any]:
        """Run `action` on each rank; gather the results (JSON), in rank order, on every rank.

        If it raises on some rank, all ranks raise: the others raise the first such rank's message, as a UserError
        if that was one, else as a RuntimeError."""
        told: dict[str, Any] = {}
        raised: Exception | None = None
        try:
            told["value"] = action()
        except UserError as error:
            raised = error
            told["refused"] = [error.what, error.where, error.expected, error.remedy]
        except OSError as error:
            raised = UserError(error.strerror or str(error), where=error.filename or "")
            told["refused"] = [raised.what, raised.where, "", ""]
        except Exception as error:
            raised = error
            told["failed"] = f"{type(error).__name__}: {error}"
        found = self.gather(told)
        if raised is not None:
            raise raised
        for rank, one in enumerate(found):
            if "failed" in one:
                raise RuntimeError(f"{one['failed']} (on rank {rank} of {self.size})")
        refused = [rank for rank, one in enumerate(found) if "refused" in one]
        if refused:
            what, where, expected, remedy = found[refused[0]]["refused"]
            others = f" and {len(refused) - 1} more" if refused[1:] else ""
            what = f"{what} (on rank {refused[0]}{others} of {self.size})"
            raise UserError(what, where=where, expected=expected, remedy=remedy)
        return [one["value"] for one in found]

    def apart(self) -> "World":
        """Return the same ranks with a separate message group, for a thread beside the training loop, so that
        neither blocks or reorders the other's messages. All ranks call this."""
        if self.messages is None:
            return self
        return replace(self, messages=dist.new_group(backend="gloo", timeout=self.timeout))

    def sum_max(self, sums: Sequence[float], maxima: Sequence[int]) -> "SumMax":
        """Start all-reducing `sums` (sum) and `maxima` (max) over the ranks; `wait` returns the result.

        Returns at once, so that communication for the next step overlaps with computing this one. Sums are float64:
        counts are exact up to 2**53.
        """
        return SumMax(self, sums, maxima)


class SumMax:
    """Two small all-reduces in progress."""

    def __init__(self, world: World, sums: Sequence[float], maxima: Sequence[int]) -> None:
        self._kinds = [type(value) for value in sums]
        self._sums = torch.tensor(list(sums), dtype=torch.float64)
        self._maxima = torch.tensor(list(maxima), dtype=torch.int64)
        self._works = []
        if world.size > 1:
            for tensor, operation in ((self._sums, dist.ReduceOp.SUM), (self._maxima, dist.ReduceOp.MAX)):
                if tensor.numel():
                    self._works.append(
                        dist.all_reduce(tensor, operation, group=world.messages, async_op=True)
                    )

    def wait(self) -> tuple[list[Any], list[int]]:
        """Return (sums, maxima), equal on all ranks; each sum has the type of this rank's input."""
        while self._works:
            self._works.pop(0).wait()
        sums = [kind(value) for kind, value in zip(self._kinds, self._sums.tolist(), strict=True)]
        return sums, self._maxima.tolist()


def raise_on_all_ranks(world: World, check: Callable[[], Found]) -> Found:
    """Run `check` and return its result. All ranks call this. If it raises UserError on any rank, the first rank
    raises it and the others exit silently with its exit code."""
    found: list[Found] = []
    try:
        world.together(lambda: found.append(check()))
    except UserError:
        if world.rank != 0:
            raise SystemExit(EXIT_USER_ERROR) from None
        raise
    return found[0]


def check_gpus(ranks: int) -> None:
    """Raise UserError if this machine has GPUs, but fewer than one per rank."""
    if torch.cuda.is_available() and ranks > torch.cuda.device_count():
        raise UserError(
            f"{ranks} ranks on a machine with {torch.cuda.device_count()} GPU(s)",
            where="run.ranks",
            expected="at most one rank a GPU",
            remedy="run.ranks lower, or CUDA_VISIBLE_DEVICES= to train on the CPU",
        )


def _device(world: World, count: Callable[[], int] = torch.cuda.device_count) -> torch.device:
    """Choose one GPU per rank; a launcher may also make only its own GPU visible to each rank."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    devices = count()
    if devices > 1 and world.local_rank >= devices:
        raise UserError(
            f"{world.local_size} ranks on a node with {devices} GPUs",
            where="launcher",
            expected="at most one rank a GPU",
        )
    return torch.device("cuda", world.local_rank if devices > 1 else 0)


def _connect(world: World, timeout: timedelta) -> None:
    settings: dict[str, Any] = {"rank": world.rank, "world_size": world.size, "timeout": timeout}
    if world.size == 1:
        settings["store"] = dist.HashStore()  # no port, no network
    elif os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        # torchrun itself holds the store, over all its restarts: without a prefix the ranks of a new attempt would look
        # for those of the last one, at the addresses that they left there
        held = dist.TCPStore(
            world.address, world.port, is_master=False, timeout=timeout, wait_for_workers=False
        )
        restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        settings["store"] = dist.PrefixStore(f"restart-{restart}", held)
    else:
        settings["init_method"] = f"tcp://{world.address}:{world.port}"
    if world.device.type == "cuda":
        dist.init_process_group("nccl", device_id=world.device if world.size > 1 else None, **settings)
    else:
        dist.init_process_group("gloo", **settings)


# Reproducible arithmetic: CPU threads and deterministic kernels. Dropout is seeded in pretrain/training/feed.py.


CUBLAS, CUBLAS_MEMORY = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"


def own_cores(environment: Mapping[str, str], sharing: int, local_size: int = 1) -> int:
    """Return this rank's number of cores: those it can run on, divided among the `sharing` ranks that can. Under srun,
    as many as each of the node's `local_size` ranks was given, since Slurm need not bind a rank to its own."""
    available = len(os.sched_getaffinity(0))
    given, _ = srun_cores(environment, local_size)
    return min(available, given) if given else max(1, available // sharing)


def unstated_threads(config: RunConfig, world: World, environment: Mapping[str, str]) -> str:
    """Say that the number of threads, on which sums and so weights depend, follows from what srun was not told; empty
    where it was told, or run.threads is set, and outside srun."""
    given, is_stated = srun_cores(environment, world.local_size)
    if not given or is_stated or config.run.threads:
        return ""
    return (
        f"srun has no --cpus-per-task, so each rank computes with {torch.get_num_threads()} of its node's threads; "
        "slurm/train.sbatch passes the job's on, and another number gives weights that are equal within rounding: "
        "set run.threads, or srun's --cpus-per-task"
    )


def ranks_sharing_cores(world: World) -> int:
    """Count the ranks of this node, this one included, that can run on some of its cores: all of them, or fewer if the
    launcher has bound each to cores of its own. Collective."""
    mine = sum(1 << core for core in os.sched_getaffinity(0))
    of_ranks = world.gather([world.node, hex(mine)])
    return sum(node == world.node and bool(int(cores, 16) & mine) for node, cores in of_ranks)


def set_threads(config: RunConfig, world: World) -> None:
    """Set this rank's CPU threads explicitly: sums depend on how work is split over threads. Collective."""
    sharing = ranks_sharing_cores(world)
    torch.set_num_threads(config.run.threads or own_cores(os.environ, sharing, world.local_size))


def set_arithmetic(config: RunConfig) -> None:
    """Have torch choose deterministic kernels as configured, and sum products of half precision in fp32. An operation
    that has no such kernel then raises RuntimeError, which names it."""
    if config.train.deterministic:
        os.environ.setdefault(CUBLAS, CUBLAS_MEMORY)  # without it torch refuses products on CUDA
    # No mere warning: with one, CUDA's attention keeps its backward pass that adds in any order. Not by
    # use_deterministic_algorithms, which imports torch.compile to tell it, too; compile_model does, where one compiles.
    torch.set_deterministic_debug_mode("error" if config.train.deterministic else "default")
    # it would also have all new memory written once before use, which nothing reads
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    # where a product is split along its sum, its parts would be added in half precision
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False


def settle_products(device: torch.device) -> None:
    """On CUDA, take the variable that `set_arithmetic` has set out of the environment again, once torch has seen it.

    To allow products among deterministic kernels torch asks for it a single time, at the first one; but it parses it
    with a regular expression at each, which takes half of the host's time. cuBLAS is deterministic without it, since
    torch gives it memory of its own for each stream. Where torch asks again the variable stays."""
    if device.type == "cuda" and os.environ.get(CUBLAS) == CUBLAS_MEMORY:
        _multiply(device)
        del os.environ[CUBLAS]
        try:
            _multiply(device)
        except RuntimeError:
            os.environ[CUBLAS] = CUBLAS_MEMORY


def _multiply(device: torch.device) -> None:
    square = torch.ones(16, 16, device=device)
    _ = square @ square
