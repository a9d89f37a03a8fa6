"""Training steps, ours (packed, `maskmill train`) against transformers' BertForPreTraining under its Trainer.

    python tests/benchmarks/bench_step.py --layers 4 --hidden 256 --examples 32 --threads 2

Prints real tokens (padding not counted) a second, the share of the fp32 matrix-product peak that was measured between
the rounds, and the peak memory of each contender; of ours also the share of the time in which it waited for data, over
all rounds. While another contender has its turn ours reads some five steps ahead: for that share `--steps` should be
many more. The text is the demo's, prepared with BERT's uncased vocabulary of
30,522 words, so lengths are real; `--short` states the share of short sequences (0.1 is the data recipe's own; 1 gives
lengths spread evenly over the whole range). Every contender trains on the same batches of pairs with the same masks,
in fp32 unless its name says bf16 (ours: weights in bf16, masters and sums in fp32; the Trainer's: autocast), with the
same dropout, AdamW and gradients clipped to 1, in a process of its own; they take turns, so that a change of the
machine's load meets all, and the median round counts. Ours runs with what `maskmill train` sets in its environment;
the Trainer with a user's environment, and once more with ours.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # a plain script, also from another working directory

from data_pipeline.shards.index import Index  # noqa: E402
from launch.ranks import tuning  # noqa: E402
from pretrain.config.encoder import EncoderSettings  # noqa: E402
from pretrain.config.settings import RunConfig  # noqa: E402
from pretrain.objectives.registry import load  # noqa: E402
from tests.command_line import VOCABULARY, command, environ  # noqa: E402


class Contender(NamedTuple):
    """One row of the table."""

    label: str
    name: str
    environment: dict[str, str]
    settings: list[str]


CONTENDERS = {
    "ours": Contender("Maskmill, packed", "ours", tuning(), ["train.compile=off"]),
    "bf16": Contender(
        "Maskmill, packed, bf16", "ours", tuning(), ["train.compile=off", "train.precision=bf16"]
    ),
    "compiled": Contender("Maskmill, packed, compiled", "ours", tuning(), ["train.compile=on"]),
    "trainer": Contender("transformers' Trainer, padded", "trainer", {}, []),
    "tuned": Contender("the same with our environment", "trainer", tuning(), []),
    "trainer-bf16": Contender("transformers' Trainer, padded, bf16", "trainer", {}, ["train.precision=bf16"]),
}


def main() -> None:
    arguments = parse()
    sizes = {
        k: getattr(arguments, k) for k in ("layers", "hidden", "examples", "length", "dropout", "threads")
    }
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        shards = prepare(arguments, Path(folder))
        contenders = [CONTENDERS[name] for name in arguments.contenders]
        processes = [stack.enter_context(started(c, shards, sizes)) for c in contenders]
        rounds, peaks = race(processes, arguments)
        memory = [finished(process) for process in processes]
        report(contenders, rounds, peaks, memory, Index.load(str(shards)), arguments)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--examples", type=int, default=32)
    parser.add_argument("--length", type=int, default=128, help="longest sequence")
    parser.add_argument("--short", type=float, default=0.1, help="share of sequences cut to a random length")
    parser.add_argument("--dropout", type=float, default=0.1, help="of hidden states and of attention")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=3, help="a round")
    parser.add_argument(
        "--contenders", nargs="+", choices=CONTENDERS, default=["ours", "compiled", "trainer", "tuned"]
    )
    parser.add_argument("--sources", default="", help="other text than the demo's")
    return parser.parse_args()


def prepare(arguments: argparse.Namespace, folder: Path) -> Path:
    """Shards of real text."""
    settings = [
        f"data.out={folder}/shards",
        f"data.vocab={VOCABULARY}",
        f"data.sequence_length={arguments.length}",
        "data.masked_lm_prob=0.15",
        "data.dupe_factor=1",
        "data.duplicates=keep",
        f"data.short_seq_prob={arguments.short}",
        f"encoder.max_positions={arguments.length}",
        *([f"data.sources=[{arguments.sources}]"] if arguments.sources else []),
    ]
    called = command("prepare", "demo", *settings)
    subprocess.run(called, check=True, env=environ(), stdout=subprocess.DEVNULL)
    return folder / "shards"


@contextmanager
def started(contender: Contender, shards: Path, sizes: dict[str, Any]) -> Iterator[subprocess.Popen[str]]:
    """A process that trains when it is asked to."""
    given = json.dumps(sizes | {"settings": contender.settings})
    called = [sys.executable, "-m", "tests.benchmarks.step_contenders", contender.name, str(shards), given]
    environment = environ(**contender.environment)
    with subprocess.Popen(
        called, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        yield process
        process.kill()


def ask(process: subprocess.Popen[str], steps: int, *vocabulary: int) -> dict[str, Any]:
    """Has `process` train for so many steps, profiled if the size of the vocabulary is given."""
    assert process.stdin is not None
    process.stdin.write(" ".join(map(str, (steps, *vocabulary))) + "\n")
    process.stdin.flush()
    return answered(process)


def finished(process: subprocess.Popen[str]) -> int:
    """Ends `process`; its peak memory."""
    assert process.stdin is not None
    process.stdin.close()
    return answered(process)["peak"]


def answered(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("@"):
            return json.loads(line[1:])
    raise RuntimeError(f"a contender ended with code {process.wait()}")


def race(
    processes: list[subprocess.Popen[str]], arguments: argparse.Namespace
) -> tuple[list[list[dict[str, Any]]], list[float]]:
    """What each contender answered in each round, and the peaks that were measured between them."""
    for process in processes:
        ask(process, 3)  # starts, warms up
    rounds: list[list[dict[str, Any]]] = []
    peaks = []
    for _ in range(arguments.rounds):
        peaks.append(matrix_product_peak())
        rounds.append([ask(process, arguments.steps) for process in processes])
    return rounds, peaks


def matrix_product_peak() -> float:
    """Operations a second of the best of ten fp32 products of 1024 x 1024 matrices."""
    a, b = torch.rand(1024, 1024), torch.rand(1024, 1024)
    best = float("inf")
    for _ in range(10):
        started = time.perf_counter()
        torch.mm(a, b)
        best = min(best, time.perf_counter() - started)
    return 2 * 1024**3 / best


def report(
    contenders: list[Contender],
    rounds: list[list[dict[str, Any]]],
    peaks: list[float],
    memory: list[int],
    index: Index,
    arguments: argparse.Namespace,
) -> None:
    """One row a contender; ratios to the first of the Trainers, which runs as a user would start it."""
    split, peak = index.train, statistics.median(peaks)
    seconds = [
        statistics.median(answers[n]["seconds"] / answers[n]["steps"] for answers in rounds)
        for n in range(len(contenders))
    ]
    tokens = arguments.examples * split.tokens / split.examples
    encoder = EncoderSettings(
        layers=arguments.layers, hidden=arguments.hidden, intermediate=4 * arguments.hidden
    )
    squares = round(tokens * tokens / arguments.examples)
    masked = round(arguments.examples * split.masked / split.examples)
    flops = load(RunConfig(encoder=encoder)).flops(
        index.vocabulary.size, tokens=round(tokens), squares=squares, masked=masked
    )
    print(
        f"{arguments.layers} layers x {arguments.hidden}, {arguments.examples} examples a step of "
        f"{tokens / arguments.examples:.0f} tokens on average and at most {split.max_tokens}, "
        f"dropout {arguments.dropout}, {arguments.threads} threads; "
        f"{flops / 1e9:.1f} GFLOP a step; fp32 matrix product {peak / 1e9:.0f} GFLOP/s"
    )
    peer = next((n for n, c in enumerate(contenders) if c.name == "trainer"), len(contenders) - 1)
    for number, contender in enumerate(contenders):
        print(
            f"  {contender.label:32s} {seconds[number] * 1e3:7.0f} ms {tokens / seconds[number]:7,.0f} tokens/s "
            f"{seconds[peer] / seconds[number]:5.2f}x {flops / seconds[number] / peak:6.1%} of the peak "
            f"{memory[number] / 1e9:5.2f} GB {memory[number] / memory[peer]:5.2f}x"
            f"{waited(contender, rounds, number)}"
        )


def waited(contender: Contender, rounds: list[list[dict[str, Any]]], number: int) -> str:
    """The share of its time in which a contender of ours waited for data, as `data_wait_share` of metrics.jsonl; the
    Trainer does not say."""
    if contender.name != "ours":
        return ""
    figures = [answers[number] for answers in rounds]
    share = sum(f["waited"] for f in figures) / sum(f["seconds"] for f in figures)
    return f" waited for data {share:.2%}"


if __name__ == "__main__":
    main()
