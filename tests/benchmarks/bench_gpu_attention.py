"""Attention of packed examples on a CUDA GPU, forward and backward: deterministic or not, with and without spare ones.

    python tests/benchmarks/bench_gpu_attention.py [--json FILE]

Heads of 64, bf16, the backend `varlen`. A spare example has no token; CASES are ModernBERT-base's sizes and BERT's.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # a plain script, also from another working directory

import torch  # noqa: E402

from pretrain.model.attention import Packing, attend  # noqa: E402
from pretrain.model.attention_tiles import Visibility  # noqa: E402


class Case(NamedTuple):
    """A micro-batch, and what attention sees: `window` keys to either side, or all with 0."""

    examples: int
    length: int
    spare: int = 0
    window: int = 0
    deterministic: bool = True


LONG = (
    (1, 0),
    (1, 10),
    (2, 12),
    (4, 16),
    (6, 0),
    (6, 20),
    (11, 0),
    (11, 33),
    (12, 0),
    (12, 36),
    (22, 0),
    (24, 56),
)
"""Examples of 8,192 tokens, and spare ones."""
BOTH = ((12, 8192, 36, 64), (96, 1024, 200, 0), (96, 1024, 200, 64), (128, 512, 260, 0))
"""Cases that are measured deterministic and not."""
CASES = [
    *(Case(examples, 8192, spare) for examples, spare in LONG),
    Case(12, 8192, deterministic=False),
    *(Case(*case, deterministic) for case in BOTH for deterministic in (True, False)),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="a file that gets the figures")
    arguments = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {arguments.heads} heads")
    print("examples  length  spare  window  kernels        forward  backward  backward per example")
    found = []
    for case in CASES:
        forward, backward = measure(case, arguments.heads, arguments.rounds)
        kernels = "deterministic" if case.deterministic else "any"
        print(
            f"{case.examples:8}  {case.length:6}  {case.spare:5}  {case.window:6}  {kernels:13}"
            f"  {forward:7.2f}  {backward:8.2f}  {backward / case.examples:8.3f} ms"
        )
        found.append({**case._asdict(), "forward_ms": forward, "backward_ms": backward})
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


def measure(case: Case, heads: int, rounds: int) -> tuple[float, float]:
    """Milliseconds of the forward and of the backward pass, medians."""
    torch.set_deterministic_debug_mode("error" if case.deterministic else "default")
    shape = (case.examples * case.length, heads, 64)
    q, k, v, weights = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    qkv = [x.requires_grad_() for x in (q, k, v)]
    packing = Packing.of([case.length] * case.examples + [0] * case.spare, "cuda")
    seen = Visibility(causal=False, window=case.window)
    times = []
    for _ in range(rounds + 1):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
        marks[0].record()
        out = attend(*qkv, packing, visibility=seen, backend="varlen")
        marks[1].record()
        torch.autograd.grad(out, qkv, weights)
        marks[2].record()
        torch.cuda.synchronize()
        times.append((marks[0].elapsed_time(marks[1]), marks[1].elapsed_time(marks[2])))
    return tuple(statistics.median(part) for part in zip(*times[1:], strict=True))  # type: ignore[return-value]


if __name__ == "__main__":
    main()
