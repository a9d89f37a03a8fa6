"""The mini model for so many minutes, ours against transformers' Trainer. Text in, held-out loss over wall time out.

    python -m tests.benchmarks.study_mini --folder FOLDER --minutes 6 --seeds 3 [--source TEXT] [--jobs 2]
    python -m tests.benchmarks.study_mini --draw FOLDER/result.json

Same architecture, initial deviation, text, vocabulary, batches with their masks in the same order, AdamW with the same
settings, dropout 0, fp32, threads. Ours is `maskmill train demo` with AdamW at the size of bert_mini; the peer is
bench_step.py's. Each is shown at its own best learning rate of one grid, chosen by the first seed; further seeds (of
weights and order) are run at that rate. `--contenders` names others that have a model, an optimizer, a batch and ranks
of their own (mini_contenders.py), each at its best rate:

    python -m tests.benchmarks.study_mini --contenders fast small-trainer --minutes 20 --seeds 3 --dupe-factor 12 \
        --rates 4e-3 2e-3 --calibrate 200

Time is that of a quiet machine. Before anything else the contenders train for a few steps, taking turns, round after
round; the shortest start and the shortest time for a step count, since work beside them can only add to both. Of that
follow the steps that each has time for, over which its learning rate warms up and then falls to 0: all end their
schedule as the time ends, and each point of a curve but the last is of a model whose rate has not fallen yet. So the
runs themselves may take longer, and with `--jobs 2` contenders run side by side, each on a share of the threads.

The time of a step is from checkpoint to checkpoint, saving included; the start is imports, building the model and
opening the shards. Preparing these does not count: all read the same ones. Nor does evaluation: it is done afterwards,
on the checkpoints of all, by one model, one code and the same held-out examples. A finished run is kept in
FOLDER/result.json: the same command after an interruption goes on with the others.
"""

import argparse
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch

from tests.benchmarks.mini_contenders import CONTENDERS, Judge, Run, examples_of, trained
from tests.benchmarks.studies import Results, data_settings, load, prepare, study_parser
from tests.benchmarks.study_mini_report import best, report
from tests.command_line import ROOT

PICTURE = ROOT / "docs/images/study_mini.svg"
RATES = (5e-4, 1e-3, 2e-3)
"""The grid, the same for all. In six minutes the middle one is the best for both."""
SNAPSHOTS = 10
"""Checkpoints of a run, evenly apart; the last at its end."""


class Speed(NamedTuple):
    """What short runs told."""

    start: float
    """Seconds from the start of the process to the first step."""
    step: float
    """Seconds a step."""

    def steps(self, limit: float) -> int:
        """That fit into `limit` seconds."""
        return max(SNAPSHOTS, int((limit - self.start) / self.step))

    def seconds(self, step: int) -> float:
        """From the start of the process until so many steps are done."""
        return self.start + step * self.step


def main() -> None:
    arguments = parse()
    if arguments.draw:
        report(load(arguments.draw), arguments.picture)
        return
    torch.set_num_threads(arguments.threads)
    folder = arguments.folder.resolve()
    data = data_settings(arguments, folder)
    prepare(folder, data, arguments.vocabulary)
    results = Results(folder / "result.json", setup(arguments))
    measure_speeds(arguments, results, data)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for done in [
            pool.submit(measure_runs, name, arguments, results, data) for name in arguments.contenders
        ]:
            done.result()
    report(results.values, arguments.picture)


def parse() -> argparse.Namespace:
    parser = study_parser(__doc__, "study_mini", PICTURE, layers=4, hidden=256, rates=RATES)
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=["ours", "trainer"])
    parser.add_argument("--minutes", type=float, default=6.0, help="of wall time, for each run")
    parser.add_argument("--seeds", type=int, default=1, help="of weights and order, at the best rate of each")
    parser.add_argument("--calibrate", type=int, default=24, help="steps of each short run before")
    parser.add_argument("--rounds", type=int, default=3, help="of short runs, which take turns")
    parser.add_argument(
        "--jobs", type=int, default=1, help="contenders side by side, once their speed is known"
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="whose speed is measured")
    parser.add_argument("--warmup", type=float, default=0.1, help="share of the steps")
    parser.add_argument("--examples", type=int, default=32, help="a step")
    parser.add_argument("--eval-examples", type=int, default=1024)
    return parser.parse_args()


def setup(arguments: argparse.Namespace) -> dict[str, Any]:
    """What decides the figures, but for the seeds and rates, of which more may be measured later."""
    names = ("minutes", "threads", "warmup", "examples", "length", "layers", "hidden", "vocabulary")
    more = ("dupe_factor", "held_out", "eval_examples")
    values = {name: getattr(arguments, name) for name in (*names, *more)}
    return {"source": Path(arguments.source).name, **values}


def measure_speeds(arguments: argparse.Namespace, results: Results, data: list[str]) -> None:
    """Adds to `results` how fast each contender is, unless they have it."""
    folder, found = arguments.folder.resolve(), results.values.setdefault("speeds", {})
    names = [name for name in arguments.contenders if name not in found]
    starts, steps = ({name: [] for name in names} for _ in range(2))
    for _ in range(arguments.rounds):
        for name in names:
            one, where = Run(name, arguments.rates[0], 1), folder / name / "trial"
            times = list(trained(one, arguments, data, where, arguments.calibrate, 4, arguments.threads))
            shutil.rmtree(where)
            intervals = [
                (later[2] - earlier[2]) / (later[0] - earlier[0]) for earlier, later in pairwise(times)
            ]
            steps[name] += intervals
            starts[name].append(times[0][2] - times[0][0] * min(intervals))
    for name in names:
        speed = Speed(start=min(starts[name]), step=min(steps[name]))
        found[name] = {**speed._asdict(), "starts": starts[name], "steps": steps[name]}
        print(f"{name}: {speed.start:.1f} s to start, {speed.step:.3f} s a step", flush=True)
    results.save()


def measure_runs(name: str, arguments: argparse.Namespace, results: Results, data: list[str]) -> None:
    """Adds the runs of a contender that `results` lack: of the first seed at each rate, then of the others at the
    best."""
    known = results.values["speeds"][name]
    speed, where = Speed(known["start"], known["step"]), arguments.folder.resolve() / name / "run"
    for seed in range(1, arguments.seeds + 1):
        for rate in arguments.rates if seed == 1 else [best(results.values, name)[0]["rate"]]:
            one = Run(name, rate, seed)
            if one.name not in results.measured:
                results.add(one.name, measured(one, speed, arguments, where, data))
                last = results.measured[one.name]["points"][-1]
                print(f"{one.name}: {last['mask_loss']:.3f} at [MASK] after {last['step']} steps", flush=True)


def measured(
    one: Run, speed: Speed, arguments: argparse.Namespace, where: Path, data: list[str]
) -> dict[str, Any]:
    """Trains for the steps that fit into the time, and evaluates the checkpoints."""
    contender = CONTENDERS[one.contender]
    steps, threads = speed.steps(60 * arguments.minutes), max(1, arguments.threads // arguments.jobs)
    judge = Judge(arguments, data, one)
    points = [
        {
            "seconds": speed.seconds(step),
            "took": took,
            "step": step,
            "examples": step * examples_of(contender, arguments),
            **judge.figures(contender, checkpoint),
        }
        for step, checkpoint, took in trained(one, arguments, data, where, steps, SNAPSHOTS, threads)
    ]
    shutil.rmtree(where)  # gigabytes of checkpoints
    return {"label": contender.label, **one._asdict(), "steps": steps, "points": points}


if __name__ == "__main__":
    main()
