"""Training steps of each member, ours (packed, `maskmill train`) against its class of transformers in a plain loop.

    python tests/benchmarks/bench_family.py --members electra xlnet --length 128

Both train on the same examples with the same masks, in fp32, with the same sizes, dropout, AdamW and gradients clipped
to 1, each in a process of its own; they take turns, so that a change of the machine's load meets both, and the median
round counts. The peer (family_peers.py) has all parts that ours has: pair heads, both models of ELECTRA, the teacher of
DistilBERT, the boundary head of SpanBERT. The text is the demo's, the vocabulary learnt from it.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # a plain script, also from another working directory

from data_pipeline.shards.index import Index  # noqa: E402
from launch.ranks import tuning  # noqa: E402
from launch.recipe import load_config  # noqa: E402
from pretrain.huggingface.registry import chosen_families  # noqa: E402
from pretrain.objectives.registry import OBJECTIVES, load, registered  # noqa: E402
from tests.benchmarks.bench_step import Contender, ask, finished, started  # noqa: E402
from tests.benchmarks.studies import markdown  # noqa: E402
from tests.command_line import command, environ  # noqa: E402
from tests.factories.teachers import teacher_settings  # noqa: E402

RECIPES = {name: "demo" if name == "bert" else f"{name}_tiny" for name in OBJECTIVES}
"""Member -> the recipe whose data, masks and objective are measured."""


def main() -> None:
    arguments = parse()
    rows = []
    for member in arguments.members:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(member, arguments, Path(folder)))
        print(f"| {' | '.join(rows[-1])} |", flush=True)
    head = ["member", "class", "tokens an example", "ours, examples/s", "the class, examples/s", "times"]
    print("\n" + markdown([*head, "memory", "times"], rows))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--members", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--examples", type=int, default=32)
    parser.add_argument("--length", type=int, default=128, help="longest sequence")
    parser.add_argument(
        "--vocabulary", type=int, default=30_522, help="BERT's number of words, learnt from the text"
    )
    parser.add_argument("--dropout", type=float, default=0.1, help="of hidden states and of attention")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="a round")
    parser.add_argument("--sources", default="", help="other text than the demo's")
    parser.add_argument("--profile", action="store_true", help="print what a step of both does, by kind")
    return parser.parse_args()


def measure(member: str, arguments: argparse.Namespace, folder: Path) -> list[str]:
    """Race a member against its peer; the cells of its row."""
    names = ("layers", "hidden", "examples", "length", "dropout", "threads")
    data = prepared(RECIPES[member], arguments, folder)
    settings = [
        "train.compile=off",
        *(s for s in data if not s.startswith("data.out")),
        "schedule.warmup=100",
    ]
    sizes = {"recipe": RECIPES[member], "settings": settings} | {k: getattr(arguments, k) for k in names}
    wide = [f"encoder.{k}={getattr(arguments, k)}" for k in ("layers", "hidden")]
    wide += [
        f"encoder.heads={max(1, arguments.hidden // 64)}",
        f"encoder.intermediate={4 * arguments.hidden}",
    ]
    given = [f"objective.name={member}", *data, *wide, f"encoder.max_positions={arguments.length}"]
    known = [*given, "encoder.segments=0"]
    teacher = (
        teacher_settings(known, folder / "teacher", RECIPES[member]) if registered(member).teacher else []
    )
    settings += teacher
    labels = ("ours", "peer")
    with ExitStack() as stack:
        contenders = [Contender(name, name, tuning() if name == "ours" else {}, settings) for name in labels]
        processes = [stack.enter_context(started(c, folder / "shards", sizes)) for c in contenders]
        for process in processes:
            ask(process, 2)  # starts, warms up
        rounds = [[ask(process, arguments.steps) for process in processes] for _ in range(arguments.rounds)]
        if arguments.profile:
            words = Index.load(str(folder / "shards")).vocabulary.size
            print_profile(labels, [ask(process, arguments.steps, words) for process in processes])
        memory = [finished(process) for process in processes]
    seconds = [statistics.median(r[n]["seconds"] / r[n]["steps"] for r in rounds) for n in range(2)]
    split = Index.load(str(folder / "shards")).train
    config = load_config(RECIPES[member], teacher)
    classes = [family.export_class for family in chosen_families(load(config).families, config)]
    return [
        f"`{member}`",
        " + ".join(f"`{name}`" for name in classes),
        f"{split.tokens / split.examples:.0f}",
        *(f"{arguments.examples / each:.1f}" for each in seconds),
        f"{seconds[1] / seconds[0]:.2f}",
        f"{memory[0] / 1e9:.2f} GB",
        f"{memory[0] / memory[1]:.2f}",
    ]


def print_profile(labels: Sequence[str], answers: list[dict[str, Any]]) -> None:
    """Milliseconds of a step, which the profiler makes longer, by what they are for."""
    for label, answer in zip(labels, answers, strict=True):
        kinds = ", ".join(f"{kind} {ms / answer['steps']:.0f}" for kind, ms in answer["kinds"].items())
        print(f"  {label}, ms a step: {kinds}", flush=True)


def prepared(recipe: str, arguments: argparse.Namespace, folder: Path) -> list[str]:
    """Learn a vocabulary and write shards; the settings of the data."""
    settings = [
        f"data.out={folder}/shards",
        f"data.vocab={folder}/vocabulary",
        f"data.sequence_length={arguments.length}",
        "data.dupe_factor=1",
        "data.duplicates=keep",
        "data.masked_lm_prob=0.15",
        *([f"data.sources=[{arguments.sources}]"] if arguments.sources else []),
    ]
    sized = [f"vocabulary.size={arguments.vocabulary}", f"encoder.max_positions={arguments.length}"]
    for verb in ("vocab", "prepare"):
        called = command(verb, recipe, *settings, *sized)
        subprocess.run(called, check=True, env=environ(), stdout=subprocess.DEVNULL)
    return settings


if __name__ == "__main__":
    main()
