"""How many MB of text a second does one core turn into training data, stage by stage and as a whole, beside peers?

    python tests/benchmarks/bench_prepare.py [--source BOOKS] [--vocab VOCAB] [--peer BERT] [--peer LDDL]

BOOKS: running text in any form that data.sources reads; the demo's corpus without it. VOCAB: BERT's uncased
vocab.txt. BERT, LDDL: checkouts of https://github.com/google-research/bert and https://github.com/NVIDIA/LDDL,
whose own functions run unmodified (tests/benchmarks/peers.py says how, and what stands in for TensorFlow and Dask).

The figures of docs/evidence/benchmarks_data.md, on a quiet machine of two cores, some eight minutes and some four:

    python tests/benchmarks/bench_prepare.py --source BOOKS --vocab VOCAB --peer BERT --peer LDDL
    python tests/benchmarks/bench_prepare.py --source BOOKS --vocab VOCAB --only workers --workers 2

The text is cut into sentences once. From there, ours and the peers do the same work with the same vocabulary on the
same core, one after the other, round by round: sentences given, to pairs with masks in files on disk. Ours is
data_pipeline.prepare.prepare as `maskmill prepare` calls it, with one worker: starting the worker, gathering, hashes
and the index are in the time; its compiled code is on disk from a run before. Peers get less text, since they are
slow, and their imports are not timed. Every measurement runs in a process of its own.
"""

import argparse
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # a plain script, also from another working directory

from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from tests.benchmarks.peers import Timing, Work, peer_name, run_peer  # noqa: E402
from tests.benchmarks.preparation import cut_into_sentences, prepare_whole, stage_seconds, word_cache_seconds  # noqa: E402
from tests.benchmarks.splitters import quality_table, speed_table  # noqa: E402
from tests.command_line import VOCABULARY  # noqa: E402

OURS = "Maskmill"
WARM_UP_BYTES = 200_000
SPLITTER_BYTES = 20_000_000


def main() -> None:
    arguments = parse()
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:1])
    console = Console(width=110)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        texts = Texts(arguments, folder)
        note(f"{texts.ours.stat().st_size / 1e6:.1f} MB of sentences; compiling what is not compiled yet")
        warm_up(arguments, texts, folder)
        if not arguments.only or "splitting" in arguments.only:
            show(console, alone(speed_table, texts.paragraphs))
            show(console, quality_table())
        if not arguments.only or "stages" in arguments.only:
            show(console, stage_table(arguments, texts, folder))
        if not arguments.only or "whole" in arguments.only:
            show(console, whole_table(arguments, texts, folder))
        if arguments.workers > 1 and (not arguments.only or "workers" in arguments.only):
            show(console, workers_table(arguments, texts, folder, cores))
    console.print(conditions(), highlight=False)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--source", default=str(ROOT / "launch/recipes/corpus/factbook.jsonl.zst"))
    parser.add_argument("--vocab", type=Path, default=VOCABULARY, help="vocab.txt")
    parser.add_argument("--peer", type=Path, action="append", default=[], help="a checkout; may be repeated")
    parser.add_argument("--megabytes", type=float, default=300, help="of text for ours")
    parser.add_argument(
        "--peer-megabytes", type=float, default=3, help="of text for peers: the first documents"
    )
    parser.add_argument(
        "--scaling-megabytes", type=float, default=1200, help="of text for --workers: copies of a smaller one"
    )
    parser.add_argument(
        "--document-sentences", type=int, default=0, help="cut longer documents; 0: leave them"
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--passes", type=int, nargs="+", default=[1, 5])
    parser.add_argument(
        "--repetitions", type=int, default=3, help="of every whole measurement; the median counts"
    )
    parser.add_argument("--workers", type=int, default=0, help="also compare so many workers with one")
    parser.add_argument("--only", nargs="+", choices=["splitting", "stages", "whole", "workers"], default=[])
    parser.add_argument("--folder", type=Path, help="where the work goes; default: a temporary folder")
    return parser.parse_args()


class Texts:
    """Files with a sentence a line, beginning with the same documents."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        sizes = [arguments.megabytes, arguments.peer_megabytes, WARM_UP_BYTES / 1e6]
        if arguments.workers > 1:
            sizes.append(arguments.scaling_megabytes)
        files = [folder / f"sentences-{number}.txt" for number in range(len(sizes))]
        limits = [int(size * 1e6) for size in sizes]
        self.paragraphs = alone(
            cut_into_sentences,
            arguments.source,
            dict(zip(files, limits, strict=True)),
            arguments.document_sentences,
            SPLITTER_BYTES,
        )
        self.ours, self.peers, self.small, self.scaling = [*files, files[0]][:4]
        if arguments.workers > 1:
            with open(self.scaling, "r+b") as text:  # where the source is smaller, copies of it
                data = text.read()
                for _ in range(round(limits[-1] / len(data)) - 1):
                    text.write(data)


def alone(function: Callable[..., Any], *arguments: Any) -> Any:
    """The function's result, from a fresh process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        return executor.submit(function, *arguments).result()


def warm_up(arguments: argparse.Namespace, texts: Texts, folder: Path) -> None:
    """Numba keeps compiled code on disk: after this no measurement compiles anything."""
    for length in arguments.lengths:
        alone(prepare_whole, Work(texts.small, arguments.vocab, length, 1), folder, 1)


def stage_table(arguments: argparse.Namespace, texts: Texts, folder: Path) -> Table:
    """Where the time goes: MB of input text a CPU second of each stage, and the share of the whole it takes."""
    works = [
        Work(texts.ours, arguments.vocab, length, passes)
        for length in arguments.lengths
        for passes in arguments.passes
    ]
    measured = []
    for work in works:
        note(f"stages, {work.length} tokens, passes: {work.passes}")
        measured.append(alone(stage_seconds, work, texts.small, folder))
    names = list(dict.fromkeys(name for seconds in measured for name in seconds))
    table = Table(
        "stage",
        *(f"{w.length} tokens,\n{w.passes} pass{'es' * (w.passes > 1)}" for w in works),
        title=f"stages of {texts.ours.stat().st_size / 1e6:.0f} MB: MB a CPU second (share of the time)",
    )
    for name in names:
        row = [f"{works[0].megabytes / s[name]:,.0f} ({s[name] / sum(s.values()):.0%})" for s in measured]
        table.add_row(name, *row)
    table.add_row("all, in one process", *(f"{works[0].megabytes / sum(s.values()):.1f}" for s in measured))
    note("tokenization by itself")
    cold, warm, library = alone(word_cache_seconds, works[0], texts.peers)
    table.caption = (
        f"words to ids by themselves: {works[0].megabytes / cold:.0f} MB/s with a cold cache, "
        f"{works[0].megabytes / warm:.0f} with a warm one; the tokenizers library alone "
        f"{texts.peers.stat().st_size / 1e6 / library:.1f}"
    )
    return table


def whole_table(arguments: argparse.Namespace, texts: Texts, folder: Path) -> Table:
    """Sentences to files on disk on one core, ours beside the peers, in alternation."""
    peers = {peer_name(path): path for path in arguments.peer}
    timings: dict[tuple[str, int, int], list[Timing]] = {}
    cells = [(length, passes) for length in arguments.lengths for passes in arguments.passes]
    for repetition in range(arguments.repetitions):
        for length, passes in cells:
            note(f"whole, {length} tokens, passes: {passes}, repetition {repetition + 1}")
            ours = alone(prepare_whole, Work(texts.ours, arguments.vocab, length, passes), folder, 1)
            timings.setdefault((OURS, length, passes), []).append(ours)
            for name, path in peers.items():
                with tempfile.TemporaryDirectory(dir=folder) as out:
                    work = Work(texts.peers, arguments.vocab, length, passes)
                    theirs = alone(run_peer, path, work, Path(out))
                timings.setdefault((name, length, passes), []).append(theirs)
    sizes = dict.fromkeys(peers, texts.peers.stat().st_size / 1e6) | {OURS: texts.ours.stat().st_size / 1e6}
    table = Table(
        "tokens, passes",
        OURS,
        "peak",
        *(column for name in peers for column in (name, "times as fast")),
        title="whole: sentences given, to shards on disk, one core; MB/s (MB a CPU second)",
    )
    for cell in cells:
        rate = {name: rates(timings[name, *cell], size) for name, size in sizes.items()}
        peak = max(t.peak_mb for t in timings[OURS, *cell])
        row = [f"{cell[0]}, {cell[1]}", "{:.1f} ({:.1f})".format(*rate[OURS]), f"{peak:.0f} MB"]
        for name in peers:
            row.append("{:.2f} ({:.2f})".format(*rate[name]))
            row.append(
                "{:.1f} ({:.1f})".format(*(a / b for a, b in zip(rate[OURS], rate[name], strict=True)))
            )
        table.add_row(*row)
    start = alone(prepare_whole, Work(texts.small, arguments.vocab, *cells[0]), folder, 1)
    table.caption = (
        f"medians of {arguments.repetitions}; text: {OURS} {sizes[OURS]:.1f} MB"
        + "".join(f", {name} {sizes[name]:.1f} MB" for name in peers)
        + f"; ours starts its worker in this time ({WARM_UP_BYTES / 1e6} MB take {start.seconds:.2f} s in all); "
        "peak: resident memory of the worker"
    )
    return table


def workers_table(arguments: argparse.Namespace, texts: Texts, folder: Path, cores: list[int]) -> Table:
    """The same with one worker and with several, on so many cores."""
    table = Table("tokens, passes", "1 worker", f"{arguments.workers} workers", "times as fast")
    os.sched_setaffinity(0, cores[: arguments.workers])
    for passes in arguments.passes:
        work = Work(texts.scaling, arguments.vocab, arguments.lengths[0], passes)
        timings: dict[int, list[Timing]] = {1: [], arguments.workers: []}
        for repetition in range(arguments.repetitions):
            for workers, made in timings.items():
                note(f"workers: {workers}, passes: {passes}, repetition {repetition + 1}")
                made.append(alone(prepare_whole, work, folder, workers))
        one, many = (rates(made, work.megabytes)[0] for made in timings.values())
        table.add_row(f"{work.length}, {passes}", f"{one:.1f} MB/s", f"{many:.1f} MB/s", f"{many / one:.2f}")
    table.caption = f"medians of {arguments.repetitions}"
    table.title = f"workers: {work.megabytes:.0f} MB on {len(cores[: arguments.workers])} cores, wall time"
    os.sched_setaffinity(0, cores[:1])
    return table


def rates(timings: list[Timing], megabytes: float) -> tuple[float, float]:
    """MB a second and MB a CPU second, medians."""
    return (
        megabytes / statistics.median(t.seconds for t in timings),
        megabytes / statistics.median(t.cpu_seconds for t in timings),
    )


def conditions() -> str:
    """On what this ran."""
    model = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    names = ("numpy", "numba", "tokenizers", "transformers", "pyarrow", "sentencex")
    return (
        f"{date.today()}; {model[0].partition(': ')[2] if model else platform.machine()}, {os.cpu_count()} cores; "
        f"Python {platform.python_version()}, {', '.join(f'{n} {version(n)}' for n in names)}\n"
        f"python {' '.join(sys.argv)}"
    )


def show(console: Console, table: Table) -> None:
    """Prints a table, what is said of it below it in the console's full width."""
    caption, table.caption = table.caption, None
    console.print(table)
    console.print(caption, "", sep="\n", highlight=False)


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
