"""BERT on one CUDA GPU: examples a second, share of the peak, memory beside the plan's figures, top kernels.

    PYTHONPATH=. python tests/benchmarks/bench_gpu.py                                three published sizes, LAMB, bf16
    PYTHONPATH=. python tests/benchmarks/bench_gpu.py --engine deepspeed --row large-512
    PYTHONPATH=. python tests/benchmarks/bench_gpu.py --device cpu --tiny            that it works, without a GPU

It needs no network and no data: from a checkout, with PyTorch 2.11 or newer built for CUDA, numpy, numba, fsspec and
pyarrow. `--engine plain` does without DeepSpeed: weights in half precision, masters, moments and accumulation in fp32.

Ids are random, lengths are what a row says: `large-128` and `base-128` full sequences of 128 with 20 masked,
`large-512` packed sequences of at most 512 with a mean of 254 tokens, as Wikipedia's have, 15 % masked. Dropout is 0.1
everywhere, attention included, unless `--dropout` says otherwise. One step is forward and backward over
`--accumulation` micro-batches, clipping and a LAMB update. Utilisation counts the model's own operations on real tokens
(pretrain/preflight/flops.py), no padding and no recomputation, against the dense bf16 peak of the data sheet.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from data_pipeline.loader.bin_packing import Caps
from data_pipeline.loader.packing import StepShare, pack
from pretrain.config.settings import EncoderSettings, RunConfig
from pretrain.model.attention.attend import choose_backend
from pretrain.model.batch import Shape
from pretrain.objectives.registry import load
from pretrain.optim.param_groups import build_optimizer
from pretrain.preflight.flops import peak_flops
from pretrain.preflight.memory import DTYPES, meta_model, pass_peak, states
from pretrain.training import compile_model
from pretrain.training.device_feed import Feed, HostShare
from tests.factories.models import fresh_model
from tests.factories.shards import filled

CLS, SEP = 2, 3


class Row(NamedTuple):
    """What is measured."""

    encoder: EncoderSettings
    micro_batch: int  # examples of full length
    length: int
    lengths: Callable[[int], np.ndarray]
    masked: float  # share of the tokens
    target: float  # examples a second on one H100
    aim: float


def full(length: int) -> Callable[[int], np.ndarray]:
    return lambda count: np.full(count, length, np.int64)


def like_wikipedia(longest: int) -> Callable[[int], np.ndarray]:
    """A fifth of full length, the others even from 4 % to 70 % of it: at 512 a mean of 254 tokens and some 497 GFLOP a
    sequence of BERT-large."""

    def draw(count: int) -> np.ndarray:
        draws = np.random.RandomState(0)
        short = draws.randint(max(8, longest * 4 // 100), longest * 70 // 100, count)
        return np.where(draws.rand(count) < 0.2, longest, short).astype(np.int64)

    return draw


LARGE = EncoderSettings(layers=24, hidden=1024, heads=16, intermediate=4096)
BASE = EncoderSettings()
ROWS = {
    "large-128": Row(LARGE, 128, 128, full(128), 20 / 128, 1650, 2050),
    "large-512": Row(LARGE, 32, 512, like_wikipedia(512), 0.15, 800, 970),
    "base-128": Row(BASE, 256, 128, full(128), 20 / 128, 5000, 6400),
}
TINY = EncoderSettings(layers=2, hidden=32, heads=2, intermediate=64, max_positions=64)


def main() -> None:
    arguments = parse()
    device = with_index(torch.device(arguments.device))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}, {arguments.engine} engine, dropout {arguments.dropout}")
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    for label in arguments.row:
        measure(label, sized(ROWS[label], arguments), arguments, device)


def with_index(device: torch.device) -> torch.device:
    """`cuda` as `cuda:0`: a stream's thread sets its device by number."""
    return torch.device("cuda", 0) if device.type == "cuda" and device.index is None else device


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--row", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--engine", choices=("plain", "deepspeed"), default="plain")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compile", choices=("on", "off"), default="on")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument(
        "--micro-batch", type=int, default=0, help="in full-length examples; 0: the row's own"
    )
    parser.add_argument("--accumulation", type=int, default=4, help="micro-batches a step")
    parser.add_argument("--steps", type=int, default=5, help="a window")
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--kernels", type=int, default=12, help="of the profile to list")
    parser.add_argument("--vocabulary", type=int, default=30522)
    parser.add_argument("--tiny", action="store_true", help="a model and batches of next to nothing")
    return parser.parse_args()


def sized(row: Row, arguments: argparse.Namespace) -> Row:
    if arguments.tiny:
        length = 64 if row.length > 128 else 32
        lengths = like_wikipedia(length) if row.length > 128 else full(length)
        row = row._replace(encoder=TINY, micro_batch=4, length=length, lengths=lengths)
    encoder = replace(row.encoder, dropout=arguments.dropout, attention_dropout=arguments.dropout)
    return row._replace(encoder=encoder, micro_batch=arguments.micro_batch or row.micro_batch)


def measure(label: str, row: Row, arguments: argparse.Namespace, device: torch.device) -> None:
    """Prints one row: speed, share of the peak, memory, waits and kernels."""
    config, precision = run_config(row, arguments), "bf16" if device.type == "cuda" else "fp32"
    share, shape = global_batch(row, arguments)
    model = fresh_model("bert", row.encoder, arguments.vocabulary)
    engine = (plain_engine if arguments.engine == "plain" else deepspeed_engine)(
        model, config, precision, device
    )
    feed = Feed(device, CLS, SEP, shape)
    if arguments.compile == "on":
        from rich.console import Console

        compile_model.compile_model(engine.module, feed.empty, Console())
    ready = feed.on_host(share)
    torch.manual_seed(0)
    for _ in range(2):
        step(engine, feed, ready)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        show_waits(engine, feed, ready)
    seconds = statistics.median(
        window(engine, feed, ready, arguments.steps, device) for _ in range(arguments.windows)
    )
    squares = sum(int(np.square(m.lengths, dtype=np.int64).sum()) for m in share.micro_batches)
    flops = load(RunConfig(encoder=row.encoder)).flops(
        arguments.vocabulary, tokens=share.tokens, squares=squares, masked=share.masked
    )
    peak, rate = peak_flops(device, 0.0), share.examples / seconds
    head = row.encoder.hidden // row.encoder.heads
    backend = choose_backend(device, DTYPES[precision], head, arguments.dropout)
    print(
        f"\n{label}: {rate:,.0f} examples/s (must {row.target:,.0f}, aim {row.aim:,.0f} on an H100), "
        f"{flops / seconds / peak:.1%} of {peak / 1e12:,.1f} TFLOP/s\n"
        f"  {share.examples} examples a step of {share.tokens / share.examples:.0f} tokens on average, "
        f"{flops / share.examples / 1e9:,.1f} GFLOP each; {len(share.micro_batches)} micro-batches, "
        f"{share.tokens / len(share.micro_batches) / shape.tokens:.1%} full\n"
        f"  {seconds * 1e3:,.1f} ms a step, attention by {backend}, "
        f"{'compiled' if arguments.compile == 'on' else 'not compiled'}"
    )
    if device.type == "cuda":
        show_memory(row, config, arguments, precision, device)
    show_kernels(engine, feed, ready, arguments.kernels, device)
    engine.close()


def run_config(row: Row, arguments: argparse.Namespace) -> RunConfig:
    config = RunConfig(encoder=row.encoder)
    config.train.micro_batch, config.train.compile = row.micro_batch, arguments.compile
    config.train.precision = "auto"
    config.zero.stage = 1 if arguments.engine == "deepspeed" else 0
    return config


def global_batch(row: Row, arguments: argparse.Namespace) -> tuple[StepShare, Shape]:
    """Random examples that fill so many micro-batches, packed as the loader packs them."""
    tokens = row.micro_batch * row.length
    mean = row.lengths(10_000).mean()
    lengths = (
        row.lengths(int(arguments.accumulation * tokens * 0.985 / mean))
        if mean < row.length
        else row.lengths(arguments.accumulation * row.micro_batch)
    )
    examples = filled(lengths, np.random.default_rng(1), row.masked, arguments.vocabulary)
    masked = np.diff(examples.masked_offsets)
    rows = int(tokens * row.masked * 1.04) + int(masked.max())
    caps = Caps(
        tokens, int(2 * tokens / mean) + 8, rows if mean < row.length else row.micro_batch * int(masked[0])
    )
    numbers = np.arange(len(lengths))
    return pack(examples, caps, batch=0, epochs=numbers * 0, numbers=numbers), Shape.of(caps, row.length)


class PlainEngine:
    """The steps of the DeepSpeed engine on one device without it: weights in half precision, all else in fp32."""

    def __init__(self, model: nn.Module, config: RunConfig, precision: str, device: torch.device) -> None:
        self.module = model.to(device)
        parameters = list(model.parameters())
        self._masters = [p.detach().clone().requires_grad_() for p in parameters]
        self.module.to(DTYPES[precision])
        self._weights, self._clip = list(self.module.parameters()), config.train.clip
        by_weight = dict(zip(map(id, self._weights), self._masters, strict=True))
        self._optimizer = build_optimizer(self.module, config.optim)
        for group in self._optimizer.param_groups:
            group["params"] = [by_weight[id(p)] for p in group["params"]]

    def __call__(self, batch: Any) -> Any:
        return self.module(batch)

    def backward(self, loss: Tensor, *, last: bool) -> None:
        loss.backward()
        for master, weight in zip(self._masters, self._weights, strict=True):
            if weight.grad is not None:
                gradient = weight.grad.float()
                master.grad = gradient if master.grad is None else master.grad.add_(gradient)
                weight.grad = None

    def step(self) -> None:
        gradients = [m.grad for m in self._masters if m.grad is not None]
        norm = torch.stack(torch._foreach_norm(gradients)).norm()
        torch._foreach_mul_(gradients, (self._clip / (norm + 1e-6)).clamp(max=1.0))
        self._optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(self._weights, self._masters)
        for master in self._masters:
            master.grad = None

    def close(self) -> None:
        """Nothing to do."""


def plain_engine(model: nn.Module, config: RunConfig, precision: str, device: torch.device) -> PlainEngine:
    return PlainEngine(model, config, precision, device)


def deepspeed_engine(model: nn.Module, config: RunConfig, precision: str, device: torch.device) -> Any:
    from pretrain.distributed.engine import build_engine
    from pretrain.distributed.world import World

    return build_engine(model, config, World.from_environment().start())


def micro_batches(feed: Feed, ready: HostShare) -> Iterator[Any]:
    return feed(ready, len(ready.ready))


def gradients(engine: Any, feed: Feed, ready: HostShare) -> None:
    """Forward and backward over the step's micro-batches, as in pretrain/train.py."""
    scale = {"mlm": 1 / ready.masked, "nsp": 1 / ready.pairs}
    for number, micro_batch in enumerate(micro_batches(feed, ready), start=1):
        terms, _ = engine(micro_batch)
        loss = sum(term.sum * (term.weight * scale[name]) for name, term in terms.items())
        engine.backward(loss, last=number == len(ready.ready))


def step(engine: Any, feed: Feed, ready: HostShare) -> None:
    gradients(engine, feed, ready)
    engine.step()


def window(engine: Any, feed: Feed, ready: HostShare, steps: int, device: torch.device) -> float:
    """Seconds a step."""
    started = time.perf_counter()
    for _ in range(steps):
        step(engine, feed, ready)
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


def show_memory(
    row: Row, config: RunConfig, arguments: argparse.Namespace, precision: str, device: torch.device
) -> None:
    """The peak that was measured beside what `maskmill plan` computes."""
    measured = torch.cuda.max_memory_allocated(device)
    model = meta_model(config, arguments.vocabulary)
    fixed = states(model, config, precision, 1).total
    masked = round(row.length * row.masked)
    passing = pass_peak(model, precision, row.micro_batch, row.length, masked)
    planned = fixed + passing
    print(
        f"  {measured / 1e9:.2f} GB at the peak; planned {planned / 1e9:.2f} GB ({fixed / 1e9:.2f} states, "
        f"{passing / 1e9:.2f} one pass): measured / planned {measured / planned:.3f}"
    )


def show_kernels(engine: Any, feed: Feed, ready: HostShare, count: int, device: torch.device) -> None:
    """Where the time of one step goes."""
    cuda = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as profiled:
        step(engine, feed, ready)
        if cuda:
            torch.cuda.synchronize(device)
    events = profiled.key_averages()
    times = {e.key: e.self_device_time_total if cuda else e.self_cpu_time_total for e in events}
    total = sum(times.values())
    print(f"  top kernels of one step, {total / 1e3:,.1f} ms in all:")
    for name, spent in sorted(times.items(), key=lambda item: -item[1])[:count]:
        print(f"    {spent / total:6.1%}  {name[:90]}")


if __name__ == "__main__":
    main()
