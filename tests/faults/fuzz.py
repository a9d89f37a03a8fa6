"""A number of cases in; every parser fed with files changed at random, and a table of what became of them, out.

    python tests/faults/fuzz.py --cases 120000 --seed 1

A case is wrong if it raises anything but a UserError, takes longer than LIMIT seconds, wants more than ROOM bytes of
memory, or takes for good what a checksum denies. It is made again by its parser's name, the seed and its number:

    python tests/faults/fuzz.py --only blocks --seed 1 --first 4711 --cases 1
"""

import argparse
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.faults.parsers import PARSERS, REFUSED

LIMIT = 20
"""Seconds of one case; a good one takes milliseconds."""
ROOM = 2 << 30
"""Bytes of address space that cases may take beyond what the process has at the start."""


@dataclass
class Tally:
    """What became of a parser's cases."""

    cases: int = 0
    refused: int = 0
    slowest: float = 0.0
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)


def fuzz(name: str, cases: int, seed: int, folder: Path, first: int = 0) -> Tally:
    """Cases first .. first+cases-1 of a parser."""
    folder.mkdir()
    case, tally = PARSERS[name][0](folder), Tally()
    began = time.perf_counter()
    with limited_memory():
        for number in range(first, first + cases):
            started = time.perf_counter()
            try:
                with in_time():
                    tally.refused += case(random.Random(f"{name} {seed} {number}")) == REFUSED
            except Exception:
                tally.wrong.append(f"{name}, seed {seed}, case {number}:\n{traceback.format_exc()}")
            tally.cases += 1
            tally.slowest = max(tally.slowest, time.perf_counter() - started)
    tally.seconds = time.perf_counter() - began
    return tally


@contextmanager
def in_time() -> Iterator[None]:
    """A hang is an error."""

    def late(*_: object) -> None:
        raise AssertionError(f"more than {LIMIT} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, LIMIT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def limited_memory() -> Iterator[None]:
    """More than ROOM is a MemoryError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def table(tallies: dict[str, Tally]) -> Iterator[str]:
    yield "| changed | cases | refused | taken | wrong | slowest case |"
    yield "|---|---|---|---|---|---|"
    for name, one in tallies.items():
        wrong = len(one.wrong)
        taken = one.cases - one.refused - wrong
        yield f"| {PARSERS[name][1]} | {one.cases:,} | {one.refused:,} | {taken:,} | {wrong} | {one.slowest:.2f} s |"
    cases, wrong = sum(t.cases for t in tallies.values()), sum(len(t.wrong) for t in tallies.values())
    yield ""
    yield f"{cases:,} cases, {wrong} wrong, in {sum(t.seconds for t in tallies.values()) / 60:.1f} minutes."


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=120_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--only", choices=PARSERS, action="append")
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    chosen = options.only or list(PARSERS)
    shares = sum(PARSERS[name][2] for name in chosen)
    print(f"seed {options.seed}", file=sys.stderr)
    tallies = {}
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        for name in chosen:
            cases = -(-options.cases * PARSERS[name][2] // shares)
            tallies[name] = one = fuzz(name, cases, options.seed, Path(folder, name), options.first)
            print(f"{name}: {one.cases:,} cases in {one.seconds:.0f} s", file=sys.stderr, flush=True)
            different = {text.rpartition(" line ")[2]: text for text in reversed(one.wrong)}
            for text in different.values():
                print(text, file=sys.stderr)
    print("\n".join(table(tallies)))
    raise SystemExit(any(one.wrong for one in tallies.values()))


if __name__ == "__main__":
    main()
