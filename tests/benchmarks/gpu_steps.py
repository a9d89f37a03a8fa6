"""A training step of bench_gpu.py: run it, time it, and say where the host waits for the device."""

import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from pretrain.training.feed import Feed, HostShare


def micro_batches(feed: Feed, ready: HostShare) -> Iterator[Any]:
    return feed(ready, len(ready.ready))


def gradients(engine: Any, feed: Feed, ready: HostShare) -> None:
    """Forward and backward over the step's micro-batches, as in pretrain/train.py."""
    for number, micro_batch in enumerate(micro_batches(feed, ready), start=1):
        engine.backward(forward(engine, micro_batch, ready), last=number == len(ready.ready))


def forward(engine: Any, micro_batch: Any, ready: HostShare) -> Any:
    """The loss of a micro-batch, its part of the step's mean."""
    scale = {"mlm": 1 / ready.masked, "nsp": 1 / ready.pairs}
    terms, _ = engine(micro_batch)
    return sum(term.sum * (term.weight * scale[name]) for name, term in terms.items())


def step(engine: Any, feed: Feed, ready: HostShare) -> None:
    gradients(engine, feed, ready)
    engine.step()


def window(step: Callable[[], None], steps: int, device: torch.device) -> float:
    """Seconds a step."""
    started = time.perf_counter()
    for _ in range(steps):
        step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - started) / steps


def show_waits(engine: Any, feed: Feed, ready: HostShare) -> None:
    """Where forward, backward and copies make the host wait for the device, as torch finds it; and in the update."""
    for part, work in (
        ("forward, backward, copies", lambda: gradients(engine, feed, ready)),
        ("update", engine.step),
    ):
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as found:
                warnings.simplefilter("always")
                work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        places = {f"{Path(w.filename).name}:{w.lineno}" for w in found if "synchroniz" in str(w.message)}
        print(f"  waits for the device in {part}: {', '.join(sorted(places)) or 'none'}")


def host_times(engine: Any, feed: Feed, ready: HostShare, device: torch.device) -> dict[str, float]:
    """Median seconds that the host needs to ask for a forward pass and for a backward pass of a micro-batch, and for an
    update, whose waits for the device are counted in. The device has done all before, so that no queue is full."""
    times: dict[str, list[float]] = {"forward": [], "backward": [], "update": []}

    def timed(part: str, work: Any) -> Any:
        torch.cuda.synchronize(device)
        started = time.perf_counter()
        result = work()
        times[part].append(time.perf_counter() - started)
        return result

    for _ in range(3):
        for number, micro_batch in enumerate(micro_batches(feed, ready), start=1):
            last = number == len(ready.ready)
            loss = timed("forward", lambda each=micro_batch: forward(engine, each, ready))
            timed("backward", lambda loss=loss, last=last: engine.backward(loss, last=last))
        timed("update", engine.step)
    found = {part: statistics.median(each) for part, each in times.items()}
    said = ", ".join(f"{part} {1e3 * seconds:,.1f} ms" for part, seconds in found.items())
    print(f"  the host asks for a micro-batch and an update in: {said}")
    return found
