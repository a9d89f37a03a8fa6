"""Micro-batches on their way to the device: all of them, in order, one ahead, and no value read back meanwhile."""

from dataclasses import fields
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from data_pipeline.loader.packing import Caps, StepShare, pack
from data_pipeline.records import Examples
from data_pipeline.shards.index import VocabularyStamp
from pretrain.config.encoder import EncoderSettings
from pretrain.config.settings import RunConfig
from pretrain.distributed import deepspeed_patches
from pretrain.distributed.engine import Engine
from pretrain.distributed.world import World
from pretrain.model.batch import MicroBatch, Shape
from pretrain.objectives.registry import OBJECTIVES, load
from pretrain.train import compute
from pretrain.training.feed import Feed
from pretrain.training.guard import Guard, LossMeter
from pretrain.training.progress import BatchCounts, Position
from pretrain.training.rank_timing import Pace
from pretrain.training.stream_memory import StreamMemory
from tests.factories.models import config_of

CAPS = Caps(tokens=32, examples=6, masked=8)
SHAPE = Shape.of(CAPS, 16)
CPU = torch.device("cpu")


def share(examples: int = 7) -> StepShare:
    draws = np.random.RandomState(2)
    lengths = draws.randint(6, 17, examples)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    made = Examples(
        tokens=draws.randint(5, 50, offsets[-1]).astype(np.uint16),
        offsets=offsets,
        first_lengths=(lengths // 2).astype(np.uint16),
        labels=np.ones(examples, np.int8),
        masked_positions=np.tile([1, 3], examples).astype(np.uint16),
        masked_ids=np.full(2 * examples, 9, np.uint16),
        masked_offsets=2 * np.arange(examples + 1),
    )
    numbers = np.arange(examples)
    return pack(made, CAPS, batch=0, epochs=numbers * 0, numbers=numbers)


def same(ours: MicroBatch, theirs: MicroBatch) -> bool:
    names = [f.name for f in fields(MicroBatch) if isinstance(getattr(ours, f.name), torch.Tensor)]
    return all(torch.equal(getattr(ours, name), getattr(theirs, name)) for name in names)


@pytest.mark.parametrize("shape", [None, SHAPE])
def test_all_micro_batches_come_in_order_and_empty_ones_after_them(shape: Shape | None) -> None:
    read, feed = share(), Feed(CPU, 2, 3, shape)
    (ready,) = feed.ahead(iter([read]))
    given = list(feed(ready, len(read.micro_batches) + 2))
    expected = [*map(MicroBatch.from_packed, read.micro_batches), *[MicroBatch.empty(2, 3)] * 2]
    assert len(read.micro_batches) > 2
    assert len(given) == len(expected)
    assert all(map(same, given, [x.padded(shape) if shape else x for x in expected]))
    assert {x.tokens for x in given} == {SHAPE.tokens} or shape is None
    assert list(feed(Feed(CPU, 2, 3).on_host(share(0)), 0)) == []


def test_each_is_sent_before_the_one_before_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    feed, happened, send = Feed(CPU, 2, 3), [], Feed._send
    monkeypatch.setattr(Feed, "_send", lambda self, x: happened.append("sent") or send(self, x))
    ready = feed.on_host(share())
    for _ in feed(ready, 4):
        happened.append("computed")
    assert happened == ["sent", "sent", "computed", "sent", "computed", "sent", "computed", "computed"]


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("shape", [None, SHAPE])
def test_no_step_reads_a_value_from_the_device(objective: str, shape: Shape | None) -> None:
    """The meta device has shapes and no values: whatever would wait for a GPU raises there."""
    meta = torch.device("meta")
    settings = EncoderSettings(layers=2, hidden=16, heads=2, intermediate=32, max_positions=40)
    kind = load(config_of(objective, settings))
    with meta:
        model = kind.training_model(VocabularyStamp.of_size(60)).bfloat16()
    feed, meter = Feed(meta, 2, 3, shape), LossMeter()
    ready = feed.on_host(share())
    count = len(ready.ready) + 1
    run = SimpleNamespace(
        config=SimpleNamespace(run=SimpleNamespace(seed=0)),
        plan=SimpleNamespace(objective=kind),
        engine=SimpleEngine(model),
        feed=feed,
        run_log=SimpleNamespace(meter=meter, pace=Pace(torch.device("cpu"))),
        position=Position(),
        guard=Guard(RunConfig(), Position(), World(), "bf16"),
        memory=StreamMemory({}, 0, 0, 0),
        world=World(),
    )
    counts = BatchCounts(ready.examples, ready.tokens, ready.masked, 0, kind.counts(ready), count, False, 0.0)
    compute(run, ready, counts)  # type: ignore[arg-type]
    assert all(p.grad is not None for p in model.parameters())
    meter.end_step()
    with pytest.raises((NotImplementedError, RuntimeError), match="meta"):
        meter.read(World())  # a log step does


class SimpleEngine:
    """A model, and its backward pass."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model

    def __call__(self, batch: MicroBatch, memory: object):  # type: ignore[no-untyped-def]
        return self._model(batch, memory)

    def backward(self, loss: torch.Tensor, *, last: bool) -> None:
        loss.backward()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_copies_to_a_gpu_arrive() -> None:
    read, feed = share(), Feed(torch.device("cuda", 0), 2, 3, SHAPE)
    ready = feed.on_host(read)
    assert all(x.input_ids.is_pinned() for x in ready.ready)
    given = list(feed(ready, len(ready.ready)))
    assert all(same(x.to("cpu"), y) for x, y in zip(given, ready.ready, strict=True))


def test_a_sharded_step_leaves_the_norm_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read at once, it would wait for the whole update, each step; log steps read it."""

    class OnDevice:
        def __float__(self) -> float:
            raise InterruptedError("the device was waited for")

    for call in ("complete", "forget"):
        monkeypatch.setattr(deepspeed_patches, call, lambda _: None)
    engine = Engine.__new__(Engine)
    engine._wrapper = None
    engine._engine = SimpleNamespace(
        step=lambda: None, was_step_applied=lambda: True, get_global_grad_norm=OnDevice
    )
    engine._step_sharded()
    with pytest.raises(InterruptedError):
        assert engine.grad_norm
