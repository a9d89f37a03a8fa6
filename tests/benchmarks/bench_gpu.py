"""BERT and ModernBERT on one CUDA GPU: examples a second, share of the peak, memory beside the plan's, top kernels.

    python tests/benchmarks/bench_gpu.py                                published sizes, LAMB, bf16
    python tests/benchmarks/bench_gpu.py --engine deepspeed --row large-512 --deterministic on
    python tests/benchmarks/bench_gpu.py --device cpu --tiny            that it works, without a GPU

It needs no network and no data: from a checkout, with PyTorch 2.11 or newer built for CUDA, numpy, numba, fsspec and
pyarrow. Each row is measured on both engines, with deterministic kernels, as a run has them by default, and without.
`--engine plain` does without DeepSpeed: weights in half precision, masters, moments and accumulation in fp32.

Ids are random, lengths are what a row says: `large-128` and `base-128` full sequences of 128 with 20 masked,
`large-512` packed sequences of at most 512 with a mean of 254 tokens, as Wikipedia's have, 15 % masked, `modern-1024`
and `modern-8192` ModernBERT-base in full sequences, 30 % masked, `global-8192` the same without local layers. Dropout
is BERT's 0.1 everywhere, attention included, and ModernBERT's own, unless `--dropout` says otherwise. One step is
forward and backward over `--accumulation` micro-batches, clipping and a LAMB update. Utilisation counts the model's own
operations on real tokens (pretrain/preflight/step_time.py), no padding and no recomputation, against the dense bf16
peak of the data sheet.
"""

import argparse
import json
import statistics
import sys
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # a plain script, also from another working directory

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402

from pretrain.config.settings import RunConfig  # noqa: E402
from pretrain.distributed.launch_env import dtype_of  # noqa: E402
from pretrain.distributed.world import set_arithmetic, settle_products  # noqa: E402
from pretrain.model.attention import choose_backend  # noqa: E402
from pretrain.objectives.registry import load  # noqa: E402
from pretrain.preflight.memory import meta_model, pass_peak, states  # noqa: E402
from pretrain.preflight.step_time import peak_flops  # noqa: E402
from pretrain.training import feed as compile_model  # noqa: E402
from pretrain.training.feed import Feed, HostShare  # noqa: E402
from tests.benchmarks.gpu_engines import engine_of  # noqa: E402
from tests.benchmarks.gpu_rows import (  # noqa: E402
    ROWS,
    Row,
    add_row_options,
    config_of_row,
    figures_in,
    global_batch,
    sized,
)
from tests.benchmarks.gpu_steps import host_times, show_waits, step, window  # noqa: E402
from tests.factories.models import fresh_model  # noqa: E402

CLS, SEP = 2, 3
ENGINES = ("deepspeed", "plain")


class Case(NamedTuple):
    """One measurement: a row of ROWS, an engine, and whether kernels are deterministic, `on` or `off`."""

    row: str
    engine: str
    deterministic: str


def main() -> None:
    arguments = parse()
    found = figures_in(arguments.json)
    device = with_index(torch.device(arguments.device))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}")
    for case in map(Case._make, product(arguments.row, arguments.engine, arguments.deterministic)):
        found.append(measure(case, sized(ROWS[case.row], arguments), arguments, device))
        if arguments.json:
            arguments.json.write_text(json.dumps(found, indent=1))


def with_index(device: torch.device) -> torch.device:
    """`cuda` as `cuda:0`: a stream's thread sets its device by number."""
    return torch.device("cuda", 0) if device.type == "cuda" and device.index is None else device


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add_row_options(parser, steps=5)
    parser.add_argument("--engine", nargs="+", choices=ENGINES, default=ENGINES)
    parser.add_argument("--deterministic", nargs="+", choices=("on", "off"), default=["on", "off"])
    parser.add_argument("--kernels", type=int, default=12, help="of the profile to list")
    parser.add_argument(
        "--trace", type=Path, help="a file for the timeline of one step, as chrome://tracing shows it"
    )
    return parser.parse_args()


def measure(case: Case, row: Row, arguments: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Prints one row: speed, share of the peak, memory, waits and kernels; returns the figures."""
    config, precision = run_config(case, row, arguments), "bf16" if device.type == "cuda" else "fp32"
    set_arithmetic(config)
    settle_products(device)
    share, shape = global_batch(row, arguments)
    model = fresh_model(row.objective, row.encoder, row.vocabulary)
    engine = engine_of(case.engine, model, config, precision, device)
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
        window(lambda: step(engine, feed, ready), arguments.steps, device) for _ in range(arguments.windows)
    )
    squares = sum(int(np.square(m.lengths, dtype=np.int64).sum()) for m in share.micro_batches)
    flops = load(config).flops(row.vocabulary, tokens=share.tokens, squares=squares, masked=share.masked)
    peak, rate = peak_flops(device, 0.0), share.examples / seconds
    head = row.encoder.hidden // row.encoder.heads
    backend = choose_backend(device, dtype_of(precision), head, row.encoder.attention_dropout)
    print(
        f"\n{case.row}: {rate:,.0f} examples/s{goals(row)}, "
        f"{flops / seconds / peak:.1%} of {peak / 1e12:,.1f} TFLOP/s\n"
        f"  {share.examples} examples a step of {share.tokens / share.examples:.0f} tokens on average, "
        f"{flops / share.examples / 1e9:,.1f} GFLOP each; {len(share.micro_batches)} micro-batches, "
        f"{share.tokens / len(share.micro_batches) / shape.tokens:.1%} full\n"
        f"  {seconds * 1e3:,.1f} ms a step, attention by {backend}, "
        f"{'compiled' if arguments.compile == 'on' else 'not compiled'}, "
        f"{'deterministic' if config.train.deterministic else 'any'} kernels, {case.engine} engine"
    )
    figures: dict[str, Any] = {**case._asdict(), "examples_per_second": rate, "step_seconds": seconds}
    figures["utilisation"] = flops / seconds / peak
    if device.type == "cuda":
        figures |= show_memory(row, config, arguments, precision, device)
        figures["host_seconds"] = host_times(engine, feed, ready, device)
    show_kernels(engine, feed, ready, arguments, device)
    engine.close()
    return figures


def goals(row: Row) -> str:
    return f" (must {row.target:,.0f}, aim {row.aim:,.0f} on an H100)" if row.target else ""


def run_config(case: Case, row: Row, arguments: argparse.Namespace) -> RunConfig:
    config = config_of_row(row)
    config.train.micro_batch, config.train.compile = row.micro_batch, arguments.compile
    config.train.deterministic = case.deterministic == "on"
    config.zero.stage = 1 if case.engine == "deepspeed" else 0
    return config


def show_memory(
    row: Row, config: RunConfig, arguments: argparse.Namespace, precision: str, device: torch.device
) -> dict[str, float]:
    """The peak that was measured beside what `maskmill plan` computes, in bytes."""
    measured = torch.cuda.max_memory_allocated(device)
    model = meta_model(config, row.vocabulary)
    fixed = states(model, config, precision, 1).total
    masked = round(row.length * row.masked)
    passing = pass_peak(model, precision, row.micro_batch, row.length, masked)
    planned = fixed + passing
    print(
        f"  {measured / 1e9:.2f} GB at the peak; planned {planned / 1e9:.2f} GB ({fixed / 1e9:.2f} states, "
        f"{passing / 1e9:.2f} one pass): measured / planned {measured / planned:.3f}"
    )
    return {"peak_bytes": measured, "planned_bytes": planned}


def show_kernels(
    engine: Any, feed: Feed, ready: HostShare, arguments: argparse.Namespace, device: torch.device
) -> None:
    """Where the time of one step goes."""
    cuda = device.type == "cuda"
    host = [ProfilerActivity.CPU] if arguments.trace or not cuda else []
    with profile(activities=host + [ProfilerActivity.CUDA] * cuda) as profiled:
        step(engine, feed, ready)
        if cuda:
            torch.cuda.synchronize(device)
    if arguments.trace:
        profiled.export_chrome_trace(str(arguments.trace))
    events = profiled.key_averages()
    times = {e.key: e.self_device_time_total if cuda else e.self_cpu_time_total for e in events}
    total = sum(times.values())
    print(f"  top kernels of one step, {total / 1e3:,.1f} ms in all:")
    for name, spent in sorted(times.items(), key=lambda item: -item[1])[: arguments.kernels]:
        print(f"    {spent / total:6.1%}  {name[:90]}")


if __name__ == "__main__":
    main()
