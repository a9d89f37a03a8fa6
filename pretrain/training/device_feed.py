"""Copy a rank's micro-batches to its device, each while the previous one is computed.

The loader's thread reads and packs. A second thread, here, makes tensors: padded to the run's static shape if there
is one, and for a GPU in page-locked memory, copied on a separate stream.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields

import torch
from rich.console import Console
from torch import Tensor

from data_pipeline import rng
from data_pipeline.loader.loader import Loader, Prefetch
from data_pipeline.loader.packing import StepShare
from pretrain.distributed.engine import Engine
from pretrain.distributed.world import World
from pretrain.model.batch import MicroBatch, Shape
from pretrain.preflight.check_run import Plan
from pretrain.training import compile_model
from pretrain.training.progress import Position
from pretrain.training.stream_memory import StreamMemory


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
    compile_model.compile_model(engine.module, feed.empty, console, memory.read(feed.empty))
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
