"""The peer of bench_gpu.py on the same rows: the class of transformers, padded, compiled, with torch's fused AdamW.

    python tests/benchmarks/bench_gpu_peer.py --row modern-8192 --attention sdpa

The same random examples, as many at a time as a micro-batch has of full length, padded to the longest; weights in
fp32 under bf16's autocast, gradients clipped to 1. Of ModernBERT the head sees the masked places alone
(`sparse_prediction`), as its authors train it. The padded tensors are on the device before the clock starts.
`flex_attention` has the sliding window as a block mask; FlashAttention's package is not used.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # a plain script, also from another working directory

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from data_pipeline.records import Examples  # noqa: E402
from data_pipeline.shards.index import VocabularyStamp  # noqa: E402
from pretrain.model.batch import MicroBatch  # noqa: E402
from pretrain.objectives.registry import load  # noqa: E402
from tests.benchmarks.family_peers import Peer, targets  # noqa: E402
from tests.benchmarks.gpu_rows import (  # noqa: E402
    ROWS,
    Row,
    add_row_options,
    config_of_row,
    drawn,
    figures_in,
    sized,
)
from tests.benchmarks.gpu_steps import window  # noqa: E402

ATTENTION = ("sdpa", "flex_attention")


def main() -> None:
    arguments = parse()
    device = torch.device(arguments.device)
    found = figures_in(arguments.json)
    for name in arguments.row:
        found.append(measure(name, sized(ROWS[name], arguments), arguments, device))
        if arguments.json:
            arguments.json.write_text(json.dumps(found, indent=1))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add_row_options(parser, steps=3)
    parser.add_argument("--attention", choices=ATTENTION, default=ATTENTION[0])
    return parser.parse_args()


def measure(name: str, row: Row, arguments: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Print and return one row: examples a second and memory at the peak."""
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    config = config_of_row(row)
    vocabulary = VocabularyStamp.of_size(row.vocabulary)._replace(pad=0, cls=2, sep=3)
    peer = Peer(config, vocabulary, load(config).families)
    model = prepared(peer.model.to(device).train(), arguments)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)
    batches = [on(device, batch) for batch in padded(peer, row, drawn(row, arguments))]
    examples = sum(len(batch["input_ids"]) for batch in batches)

    def step() -> None:
        for batch in batches:
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                loss = model(**batch).loss / len(batches)
            loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    window(step, 2, device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    seconds = statistics.median(window(step, arguments.steps, device) for _ in range(arguments.windows))
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    print(
        f"{name}, transformers, {arguments.attention}: {examples / seconds:,.0f} examples/s, "
        f"{seconds * 1e3:,.1f} ms a step of {examples} examples, {peak / 1e9:.2f} GB at the peak"
    )
    figures = {"row": name, "attention": arguments.attention, "micro_batch": row.micro_batch}
    speed = {"examples_per_second": examples / seconds, "step_seconds": seconds}
    return {**figures, **speed, "peak_bytes": peak}


def prepared(model: Any, arguments: argparse.Namespace) -> Any:
    """Return the model with the attention that was asked for, compiled."""
    model.set_attn_implementation(arguments.attention)
    if hasattr(model, "sparse_prediction"):
        model.sparse_prediction = True
    if arguments.compile == "on":
        model.compile()
    return model


def padded(peer: Peer, row: Row, examples: Examples) -> Iterator[dict[str, Tensor]]:
    """Yield micro-batches as the class takes them, without a mask where nothing is padded; a rest is left out."""
    for start in range(0, len(examples) - row.micro_batch + 1, row.micro_batch):
        batch = MicroBatch.from_examples(examples.take(np.arange(start, start + row.micro_batch)))
        inputs = {**peer.inputs(batch), "labels": targets(batch)}
        if inputs["attention_mask"].all():
            del inputs["attention_mask"]
        if row.objective == "bert":
            inputs[peer.pair_label] = batch.labels
        yield inputs


def on(device: torch.device, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.to(device) for name, tensor in batch.items()}


if __name__ == "__main__":
    main()
