"""Copy a rank's micro-batches to its device, each while the previous one is computed; compile the model for them.

The loader's thread reads and packs. A second thread, here, makes tensors: padded to the run's static shape if there
is one, and for a GPU in page-locked memory, copied on a separate stream.

A model is compiled for micro-batches of one shape: a run has a static shape where its model is compiled.
"""

import shutil
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from types import MethodType
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from data_pipeline import rng
from data_pipeline.errors import UserError
from data_pipeline.loader.loader import Loader, Prefetch
from data_pipeline.loader.packing import StepShare
from pretrain.config.settings import RunConfig
from pretrain.distributed.engine import Engine
from pretrain.distributed.launch_env import dtype_of
from pretrain.distributed.world import World
from pretrain.model.attention import choose_backend
from pretrain.model.batch import MicroBatch, Shape
from pretrain.model.torch_internals import mark_dynamic, stop_compile_workers
from pretrain.objectives.registry import load
from pretrain.preflight.check_run import Plan
from pretrain.training.progress import Position
from pretrain.training.stream_memory import StreamMemory

# Whether a run compiles its model, and the compilation for one shape.

CPU_FLOPS = 1e11
"""Operations per second assumed for a CPU when estimating the length of a run."""
LONG = 1800.0
"""Seconds of training above which compiling pays off on a CPU: it takes one to two minutes and saves 10% or more."""


def wants_compiling(config: RunConfig, device: torch.device, precision: str, run_flops: float) -> bool:
    """Return whether this run compiles its model, for all phases alike, since a compiled model stays compiled.
    `run_flops`: operations of all steps over all ranks. Raises UserError if train.compile=on is impossible."""
    setting = config.train.compile
    obstacle = _obstacle(config, device, precision)
    if setting == "on" and obstacle:
        raise UserError(f"train.compile=on: {obstacle}", where="settings", remedy="train.compile=off")
    if setting != "auto":
        return setting == "on"
    if device.type == "cuda":
        return not obstacle
    return not obstacle and run_flops / CPU_FLOPS >= LONG


def run_flops(plans: list[Plan]) -> float:
    """Count the operations of all steps over all ranks; minutes of training count as those of a CPU."""
    trains = [(plan, plan.phase.config.train) for plan in plans]
    return sum(
        60 * train.minutes * CPU_FLOPS or train.steps * plan.step_flops(plan.phase.config)
        for plan, train in trains
    )


def allowed(config: RunConfig, device: torch.device, precision: str) -> str:
    """Return train.compile, or `off` if this machine cannot compile."""
    return "off" if _obstacle(config, device, precision) else config.train.compile


def _obstacle(config: RunConfig, device: torch.device, precision: str) -> str:
    """Return why this run's model cannot be compiled into one graph; empty if it can."""
    if not load(config).one_shape:
        return (
            f"the attention of objective.name={config.objective.name} follows the lengths of each micro-batch"
        )
    if config.zero.stage == 3:
        return "ZeRO stage 3 fetches parameters in the middle of the graph"
    if device.type == "cuda":
        head = config.encoder.hidden // config.encoder.heads
        if choose_backend(device, dtype_of(precision), head, config.encoder.attention_dropout) != "tiles":
            return ""
        return "attention needs bf16 or fp16, heads of a multiple of 8 up to 256, and an Ampere GPU or newer"
    if config.train.activation_checkpointing:
        return "a CPU would draw other dropout when it recomputes (train.activation_checkpointing)"
    return (
        ""
        if shutil.which("g++") or shutil.which("clang++")
        else "a C++ compiler is needed, and none is found"
    )


def compile_model(model: nn.Module, example: MicroBatch, console: Console, memory: Any = None) -> float:
    """Compile `model` in place, forward and backward, for micro-batches and memory of the shape of `example` only;
    the number of examples with tokens may differ (`MicroBatch.borders`).

    Computes gradients once and discards them. Prints progress on the console; returns the seconds taken."""
    # as `set_arithmetic` (distributed/world.py) has set it already, but this tells the compiler, too
    torch.use_deterministic_algorithms(torch.are_deterministic_algorithms_enabled())
    # not model.compile, which would trace the hooks of DeepSpeed too; from the class, since a phase may compile anew
    forward = MethodType(type(model).forward, model)
    model.forward = torch.compile(forward, dynamic=False, fullgraph=True)
    mark_dynamic(example.borders, 0)
    console.print(
        "compiling the model: once, for a minute or two (train.compile=off does without)", soft_wrap=True
    )
    started = time.perf_counter()
    with warnings.catch_warnings(), console.status("compiling"):
        warnings.simplefilter("ignore")  # of the compiler, about its own parts
        terms, _ = model(example, memory)
        loss = torch.stack([term.sum for term in terms.values()]).sum()
        torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad], allow_unused=True)
    stop_compile_workers()
    seconds = time.perf_counter() - started
    console.print(f"compiled in {seconds:.0f} s", soft_wrap=True)
    return seconds


@contextmanager
def eager(model: nn.Module) -> Iterator[None]:
    """Return a context in which a compiled `model` runs uncompiled, for micro-batches of other shapes that are too few
    to be worth a graph. For a model that is not compiled it does nothing, and imports no compiler.

    Not the stance `force_eager`, at which torch 2.12 warns that a whole graph was asked for."""
    compiled = vars(model).pop("forward", None)  # the class's own is behind it
    try:
        yield
    finally:
        if compiled is not None:
            model.forward = compiled


# The feed of micro-batches to the device, and the dropout that they are computed with.


def seed_dropout(seed: int, batch: int, rank: int, micro_batch: int) -> None:
    """Seed torch's generators for the dropout of one micro-batch, so that no generator state needs saving."""
    torch.manual_seed(rng.text_key(f"dropout {seed} {batch} {rank} {micro_batch}") >> 1)


@dataclass(frozen=True, eq=False)
class HostShare(StepShare):
    """A share with its tensors in host memory."""

    ready: list[MicroBatch] = field(default_factory=list)


class Feed:
    """Builds micro-batches and copies them to `device`; `cls` and `sep` are the vocabulary's."""

    def __init__(self, device: torch.device, cls: int, sep: int, shape: Shape | None = None) -> None:
        self._device, self._shape = device, shape
        self._empty = self._on_host(MicroBatch.empty(cls, sep))
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    @property
    def has_one_shape(self) -> bool:
        """Whether all micro-batches are padded to one shape."""
        return self._shape is not None

    def ahead(self, shares: Iterator[StepShare]) -> Prefetch[HostShare]:
        """Yield the shares with their tensors, prefetching one."""
        return Prefetch(map(self.on_host, shares), 1)

    def on_host(self, share: StepShare) -> HostShare:
        """Return the share with its micro-batches as tensors, ready to be copied."""
        if self._stream is not None:
            torch.cuda.set_device(self._device)  # a thread has its own
        ready = [self._on_host(MicroBatch.from_packed(packed)) for packed in share.micro_batches]
        return HostShare(**{f.name: getattr(share, f.name) for f in fields(StepShare)}, ready=ready)

    def __call__(self, share: HostShare, count: int) -> Iterator[MicroBatch]:
        """Yield the share's micro-batches on the device, then empty ones up to `count`, which other ranks need.
        Each copy starts before the previous micro-batch is yielded."""
        waiting = [*share.ready, *[self._empty] * (count - len(share.ready))]
        following = self._send(waiting[0]) if waiting else None
        for number in range(len(waiting)):
            micro_batch, sent = following  # type: ignore[misc]
            if number + 1 < len(waiting):
                following = self._send(waiting[number + 1])
            self._await(micro_batch, sent)
            yield micro_batch

    @property
    def empty(self) -> MicroBatch:
        """Return a micro-batch of weight 0 on the device, in the common shape."""
        return self._empty.to(self._device)

    def _on_host(self, micro_batch: MicroBatch) -> MicroBatch:
        if self._shape is not None:
            micro_batch = micro_batch.padded(self._shape)
        return micro_batch.pin_memory() if self._device.type == "cuda" else micro_batch

    def _send(self, micro_batch: MicroBatch) -> tuple[MicroBatch, torch.cuda.Event | None]:
        if self._stream is None:
            return micro_batch.to(self._device), None
        with torch.cuda.stream(self._stream):
            moved = micro_batch.to(self._device, non_blocking=True)
            return moved, self._stream.record_event()

    def _await(self, micro_batch: MicroBatch, sent: torch.cuda.Event | None) -> None:
        """Make the device's main stream, not the host, wait for the copy; its memory is not reused before that."""
        if sent is None:
            return
        current = torch.cuda.current_stream(self._device)
        current.wait_event(sent)
        for f in fields(micro_batch):
            value = getattr(micro_batch, f.name)
            if isinstance(value, Tensor):
                value.record_stream(current)


def model_feed(
    plan: Plan, engine: Engine, world: World, compiled: bool, memory: StreamMemory, console: Console
) -> Feed:
    """Build this rank's feed; if the run is compiled, with a static shape and the model compiled for it."""
    config, vocabulary, split = plan.phase.config, plan.index.vocabulary, plan.index.train
    if not compiled:
        return Feed(world.device, vocabulary.cls, vocabulary.sep)
    shape = Shape.of(plan.caps_of_one_shape(config, world.size), split.max_tokens)
    feed = Feed(world.device, vocabulary.cls, vocabulary.sep, shape)
    compile_model(engine.module, feed.empty, console, memory.read(feed.empty))
    return feed


def training_loader(plan: Plan, feed: Feed, position: Position, world: World) -> Loader:
    """Load this rank's shares, from the first global batch that the phase has not seen."""
    config = plan.phase.config
    one = feed.has_one_shape
    caps = plan.caps_of_one_shape(config, world.size) if one else plan.caps(plan.index.train, config)
    return Loader(
        plan.index,
        plan.order(config),
        caps,
        rank=world.rank,
        world=world.size,
        start_batch=position.batch_of_phase,
        masking=plan.masking,
        separators=plan.separators,
        skip_damaged=config.data.on_damage == "skip",
    )
