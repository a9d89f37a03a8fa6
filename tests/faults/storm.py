"""A number of runs in; each killed at random moments and resumed until done; a table of kills, and the proof that all
runs end with the weights of one never disturbed, out.

    python tests/faults/storm.py --runs 50 --seed 1

Two ranks of a tiny model with dropout, checkpoints every second step. The ranks are forked from this process, which has
imported and compiled everything once: an attempt takes a second, not ten. What kills them is put into the forked ranks
by patching the calls below, never into production code.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from kills import KINDS, TIMED, Kill  # noqa: E402

from pretrain.run.events import LINES_LOST, read_events  # noqa: E402
from tests.command_line import TINY, write_text  # noqa: E402

RANKS, STEPS = 2, 8
SETTINGS = [
    *TINY,
    f"run.ranks={RANKS}",
    f"train.steps={STEPS}",
    "encoder.dropout=0.1",
    "encoder.attention_dropout=0.1",
    "zero.stage=1",
    # a kill between the first checkpoint's name and `latest` looks like a folder that shows files late
    "run.folder_wait=2",
]


@dataclass
class Storm:
    """The material of all runs, and what came of them."""

    folder: Path
    settings: list[str]
    reference: Path
    lasts: float
    kills: Counter[str]
    failed: dict[int, str] = field(default_factory=dict)
    """What was wrong with the end of a run, by its number."""
    missed: Counter[str] = field(default_factory=Counter)
    """Kills that never came, by kind: the run was done before their time or their occasion."""
    again: int = 0
    """Steps that were done again."""

    @classmethod
    def begin(cls, folder: Path) -> "Storm":
        settings = prepared(folder)
        warm_up(settings)
        started = time.monotonic()
        storm = cls(folder, settings, folder / "reference", 0.0, Counter())
        codes = storm.attempt(storm.reference, None)
        assert codes == [0] * RANKS, (folder / "reference.log").read_text()
        storm.lasts = time.monotonic() - started
        return storm

    def run(self, number: int, seed: int) -> None:
        """One run: one to three attempts that are killed, then one that is not. Raises AssertionError unless it ends as
        the reference."""
        rng, run = random.Random(f"{seed} {number}"), self.folder / f"run-{number}"
        kinds = list(KINDS)
        chosen = [kinds[(seed + number) % len(kinds)], *rng.choices(kinds, k=rng.randint(0, 2))]
        for kind in chosen:
            codes = self.attempt(run, Kill.drawn(rng, kind, RANKS, self.lasts))
            if codes == [0] * RANKS:
                self.missed[kind] += 1
            else:
                assert -signal.SIGKILL in codes, (run.with_suffix(".log").read_text(), codes)
                self.kills[kind] += 1
        codes = self.attempt(run, None)
        assert codes == [0] * RANKS, run.with_suffix(".log").read_text()
        self.compare(run)
        self.again += sum(len(event["lines"]) for event in read_events(run) if event["event"] == LINES_LOST)
        shutil.rmtree(run)

    def never_came(self) -> list[str]:
        """Kinds that wait for an occasion and missed it every time: what they wait for is not called any more."""
        return [kind for kind in self.missed if kind not in TIMED and not self.kills[kind]]

    def attempt(self, run: Path, kill: Kill | None) -> list[int]:
        """Starts the ranks and waits for all; exit codes, negative for a signal."""
        from launch.ranks import free_port

        port, group, pids = free_port(), 0, []
        log = os.open(run.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for rank in range(RANKS):
            pid = os.fork()
            if pid == 0:
                rank_process(rank, group, port, log, [*self.settings, f"run.dir={run}"], kill)
            group = group or pid
            with contextlib.suppress(PermissionError, ProcessLookupError):
                os.setpgid(pid, group)
            pids.append(pid)
        os.close(log)
        return waited(pids, kill if kill is not None and kill.kind in TIMED else None)

    def compare(self, run: Path) -> None:
        """Raises AssertionError unless weights, moments, counters and history are those of the reference."""
        from tests.run_ends import assert_bit_equal

        assert_bit_equal(self.reference, run)
        assert history(run) == history(self.reference)


def history(run: Path) -> list[tuple[int, float]]:
    """Step and loss of each line of metrics.jsonl."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [(line["step"], line.get("loss", 0.0)) for line in lines]


def rank_process(rank: int, group: int, port: int, log: int, settings: list[str], kill: Kill | None) -> None:
    """What a forked process does; never returns."""
    code = 1
    try:
        with contextlib.suppress(PermissionError):
            os.setpgid(0, group)
        os.dup2(log, 1)
        os.dup2(log, 2)
        place = {"RANK": rank, "WORLD_SIZE": RANKS, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": RANKS}
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in place.items()})
        if kill is not None and kill.rank == rank:
            kill.install()
        maskmill("train", "demo", *settings)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def waited(pids: list[int], kill: Kill | None) -> list[int]:
    """Exit codes of the processes; `kill` is done at its time. Ranks that go on after another has died get 10 s."""
    codes: dict[int, int] = {}
    started, limit = time.monotonic(), float("inf")
    while len(codes) < len(pids):
        for pid in pids:
            if pid not in codes and (found := os.waitpid(pid, os.WNOHANG))[0]:
                codes[pid] = os.waitstatus_to_exitcode(found[1])
                limit = min(limit, time.monotonic() + 10) if codes[pid] else limit
        now = time.monotonic()
        if kill is not None and now - started > kill.seconds:
            victims = [pids[kill.rank]] if kill.kind == "one rank" else pids
            end([pid for pid in victims if pid not in codes])
            kill = None
        if now > limit:
            end([pid for pid in pids if pid not in codes])
        time.sleep(0.005)
    return [codes[pid] for pid in pids]


def end(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def maskmill(*arguments: str) -> None:
    """The command line, in this process; its exit code as SystemExit."""
    from launch import cli

    sys.argv = ["maskmill", *arguments]
    cli.main()


def prepared(folder: Path) -> list[str]:
    """Settings of a corpus whose vocabulary and shards are ready."""
    write_text(folder / "text.txt")
    places = (
        f"data.sources={folder}/text.txt",
        f"data.vocab={folder}/vocabulary",
        f"data.out={folder}/shards",
    )
    settings = [*places, *SETTINGS]
    for verb in ("vocab", "prepare"):
        pid = os.fork()  # it leaves no thread and no pool of processes here
        if pid == 0:
            rank_free(lambda verb=verb: maskmill(verb, "demo", *settings))
        assert os.waitpid(pid, 0)[1] == 0, verb
    return settings


def rank_free(action: Callable[[], None]) -> None:
    """Does it and ends this forked process."""
    code = 1
    try:
        action()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
    finally:
        os._exit(code)


def warm_up(settings: list[str]) -> None:
    """Imports what a rank imports and compiles what it compiles, without starting a thread that stays."""
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import torch

    torch.set_num_threads(1)
    import deepspeed  # noqa: F401

    from data_pipeline.loader.loader import Shares
    from launch.recipe import load_config
    from pretrain.preflight.check_run import check_run
    from pretrain.train import train  # noqa: F401

    config = load_config("demo", [*settings, "run.dir=unused"])
    (plan,) = check_run(config, RANKS)
    for rank in range(RANKS):
        Shares(plan.index, plan.order(config), plan.caps(plan.index.train, config), rank, RANKS).read(0)


def table(storm: Storm, runs: int) -> Iterator[str]:
    yield "| killed | how | kills |"
    yield "|---|---|---|"
    for kind, how in KINDS.items():
        yield f"| {kind} | {how} | {storm.kills[kind]} |"
    total, equal = sum(storm.kills.values()), runs - len(storm.failed)
    yield ""
    yield f"{runs} runs of {STEPS} steps on {RANKS} ranks, {total} kills; {storm.missed.total()} more came too late."
    yield f"Bit-equal to the reference in the end: {equal} of {runs}. Steps done again: {storm.again}."


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="storm-") as folder:
        storm = Storm.begin(Path(folder))
        for number in range(options.runs):
            try:
                storm.run(number, options.seed)
            except AssertionError as error:
                storm.failed[number] = str(error)
                print(f"run {number} failed: {error}", file=sys.stderr, flush=True)
            print(f"run {number}: {sum(storm.kills.values())} kills so far", file=sys.stderr, flush=True)
        print("\n".join(table(storm, options.runs)))
        for kind in storm.never_came():
            print(f"no kill came {kind}, in {storm.missed[kind]} tries", file=sys.stderr)
        raise SystemExit(bool(storm.failed or storm.never_came()))


if __name__ == "__main__":
    main()
