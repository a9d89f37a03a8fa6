"""One LAMB step over the shapes of a BERT beside its memory floor and its peers, in one run.

    python tests/benchmarks/bench_lamb.py [--profile]                                  # BERT-large, on a GPU
    python tests/benchmarks/bench_lamb.py --layers 2 --hidden 128 --vocabulary 3000 --copy-mb 64       # on a CPU

Rows: ours as the engine runs it (one flat tensor a parameter group, as ZeRO gives them to one rank) with Triton's
kernels where they run and with torch's twins; DeepSpeed's FusedLamb, where its CUDA operator can be built; torch's
fused AdamW plus a pass for the norms of all weights and gradients. All fp32, all in memory at the same time, rounds
of all alternate, so that a change of the machine's load meets all; the median round counts.

Floor: the bytes that LAMB must move (w, g, m, v in, m, v and the update out, then w and the update in, w out: 40 a
parameter; 28 for one without a trust ratio, whose step needs no norm first) at the bandwidth of a copy measured in
the same run, bytes read plus bytes written.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # a plain script, also from another working directory

import torch  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402
from torch import Tensor  # noqa: E402

from pretrain.config.encoder import EncoderSettings  # noqa: E402
from pretrain.config.settings import OptimSettings, RunConfig  # noqa: E402
from pretrain.optim.base import parameter_groups  # noqa: E402
from pretrain.optim.flat_layout import Layout, Segment, Sharding  # noqa: E402
from pretrain.optim.lamb import Lamb, choose  # noqa: E402
from pretrain.preflight.memory import meta_model  # noqa: E402

Step = Callable[[], Any]
Shapes = list[tuple[float, list[torch.Size]]]  # weight decay and shapes, by group
LR, DECAY = 1e-6, 0.01
COPY = "a copy, read and written"


def main() -> None:
    arguments = parse()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(arguments.threads)
    shapes = bert_shapes(arguments)
    steps, missing = contestants(shapes, device)
    source = torch.rand(arguments.copy_mb * 250_000, device=device)
    target = torch.empty_like(source)
    seconds = measure({COPY: lambda: target.copy_(source), **steps}, arguments.rounds, device)
    report(shapes, seconds, missing, 8 * source.numel(), device, arguments)
    if arguments.profile:
        ours = next(iter(steps))
        print(profile(steps[ours], ours, device))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--vocabulary", type=int, default=30522)
    parser.add_argument("--copy-mb", type=int, default=1024, help="size of the tensor that is copied")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="on a CPU")
    parser.add_argument("--json", type=Path, help="a file that gets the figures")
    parser.add_argument("--profile", action="store_true", help="what our step spends its time on, by kernel")
    return parser.parse_args()


def bert_shapes(arguments: argparse.Namespace) -> Shapes:
    """Those of the real model with both heads, in the groups that LAMB steps."""
    encoder = EncoderSettings(
        layers=arguments.layers,
        hidden=arguments.hidden,
        heads=max(1, arguments.hidden // 64),
        intermediate=4 * arguments.hidden,
    )
    model = meta_model(RunConfig(encoder=encoder), arguments.vocabulary)
    groups = parameter_groups(model, OptimSettings(weight_decay=DECAY))
    return [(group["weight_decay"], [p.shape for p in group["params"]]) for group in groups]


def contestants(shapes: Shapes, device: torch.device) -> tuple[dict[str, Step], dict[str, str]]:
    """Each one's step, ours first; and of those that cannot run here, why."""
    steps: dict[str, Step] = {}
    missing: dict[str, str] = {}
    if choose(torch.empty(0, device=device)) is not choose(torch.empty(0), "torch"):
        steps["Maskmill, Triton"] = our_step(shapes, device, "auto")
    else:
        missing["Maskmill, Triton"] = "needs CUDA and triton"
    steps["Maskmill, torch"] = our_step(shapes, device, "torch")
    try:
        steps["DeepSpeed FusedLamb"] = fused_lamb_step(shapes, device)
    except Exception as error:  # a compiler that is missing or does not fit, on a machine that we do not know
        missing["DeepSpeed FusedLamb"] = (str(error).splitlines() or [type(error).__name__])[0]
    steps["torch fused AdamW and norms"] = adamw_step(shapes, device)
    return steps, missing


def our_step(shapes: Shapes, device: torch.device, kernels: str) -> Step:
    flats, layouts, groups = [], {}, []
    for number, (decay, group) in enumerate(shapes):
        sizes = [shape.numel() for shape in group]
        starts = accumulate(sizes[:-1], initial=0)
        segments = tuple(Segment(i, at, n, 0) for i, (at, n) in enumerate(zip(starts, sizes, strict=True)))
        flat = random(torch.Size([sum(sizes)]), device)
        names = tuple(f"{number}.{i}" for i in range(len(sizes)))
        layouts[id(flat)] = Layout(names, segments, sum(sizes), split=False)
        flats.append(flat)
        groups.append({"params": [flat], "weight_decay": decay})
    lamb = Lamb(groups, OptimSettings(lr=LR), kernels)
    lamb.use_sharding(Sharding(lambda flat: layouts[id(flat)]))
    return lamb.step


def random(shape: torch.Size, device: torch.device) -> Tensor:
    """A parameter with a gradient."""
    parameter = torch.randn(shape, device=device).mul_(0.02)
    parameter.grad = torch.randn_like(parameter).mul_(1e-3)
    return parameter


def separate(shapes: Shapes, device: torch.device) -> list[dict[str, Any]]:
    return [
        {"params": [random(shape, device) for shape in group], "weight_decay": decay}
        for decay, group in shapes
    ]


def fused_lamb_step(shapes: Shapes, device: torch.device) -> Step:
    if device.type != "cuda":
        raise RuntimeError("needs CUDA")
    from deepspeed.ops.lamb import FusedLamb

    # DeepSpeed's builder reads no variable that names an architecture like 9.0a, as CUDA's images have it
    os.environ["TORCH_CUDA_ARCH_LIST"] = "{}.{}".format(*torch.cuda.get_device_capability(device))
    return FusedLamb(separate(shapes, device), lr=LR, eps=1e-6).step


def adamw_step(shapes: Shapes, device: torch.device) -> Step:
    groups = separate(shapes, device)
    adamw = torch.optim.AdamW(groups, lr=LR, eps=1e-6, fused=True)
    parameters = [parameter for group in groups for parameter in group["params"]]

    def step() -> None:
        torch._foreach_norm([*parameters, *(p.grad for p in parameters)])
        adamw.step()

    return step


def measure(steps: dict[str, Step], rounds: int, device: torch.device) -> dict[str, float]:
    """Median seconds of each, after two rounds to warm up, in which kernels compile and moments are made."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for round_ in range(rounds + 2):
        for name, step in steps.items():
            elapsed = timed(step, device)
            if round_ >= 2:
                times[name].append(elapsed)
    return {name: statistics.median(values) for name, values in times.items()}


def timed(step: Step, device: torch.device) -> float:
    if device.type == "cpu":
        started = time.perf_counter()
        step()
        return time.perf_counter() - started
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    start.record()
    step()
    end.record()
    torch.cuda.synchronize(device)
    return start.elapsed_time(end) / 1e3


def report(
    shapes: Shapes,
    seconds: dict[str, float],
    missing: dict[str, str],
    copied: int,
    device: torch.device,
    arguments: argparse.Namespace,
) -> None:
    sizes = [(decay, sum(shape.numel() for shape in group)) for decay, group in shapes]
    needed = sum((40 if decay else 28) * size for decay, size in sizes)
    bandwidth = copied / seconds[COPY]
    floor = needed / bandwidth
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} CPU"
    tensors = sum(len(group) for _, group in shapes)
    console, table = Console(width=120), Table()
    console.print(
        f"{sum(size for _, size in sizes):,} parameters in {tensors} tensors, fp32; {arguments.rounds} rounds\n"
        f"{name}, torch {torch.__version__}; a copy moves {bandwidth / 1e9:,.1f} GB/s\n"
        f"floor: {needed / 1e9:.4g} GB, {floor * 1e3:,.3f} ms",
        highlight=False,
    )
    for column in ("step", "ms", "times the floor", "GB/s of the floor's bytes"):
        table.add_column(column, justify="left" if column == "step" else "right")
    for step, value in seconds.items():
        if step != COPY:
            table.add_row(step, f"{value * 1e3:,.3f}", f"{value / floor:.2f}", f"{needed / value / 1e9:,.0f}")
    if arguments.json:
        times = {step: value / floor for step, value in seconds.items() if step != COPY}
        figures = {"floor_seconds": floor, "copy_bytes_per_second": bandwidth, **times, **missing}
        arguments.json.write_text(json.dumps(figures, indent=1))
    for step, reason in missing.items():
        table.add_row(step, f"not run: {reason}", "", "")
    console.print(table)


def profile(step: Step, name: str, device: torch.device) -> str:
    """A table of five steps: kernels and operators by the time they take themselves."""
    kinds = torch.profiler.ProfilerActivity
    activities = [kinds.CPU, kinds.CUDA] if device.type == "cuda" else [kinds.CPU]
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(5):
            step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    table = profiler.key_averages().table(sort_by=f"self_{device.type}_time_total", row_limit=12)
    return f"five steps of {name}\n{table}"


if __name__ == "__main__":
    main()
