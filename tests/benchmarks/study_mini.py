"""The mini model for so many minutes, ours against transformers' Trainer. Text in, held-out loss over wall time out.

    python -m tests.benchmarks.study_mini --folder FOLDER --minutes 6 --seeds 3 [--source TEXT]
    python -m tests.benchmarks.study_mini --draw FOLDER/result.json

Same architecture, initial deviation, text, vocabulary, batches with their masks in the same order, AdamW with the same
settings, dropout 0, fp32, threads. Ours is `maskmill train demo` at the size of bert_mini; the peer is the one of
bench_step.py. Each is shown at its own best learning rate of one grid, chosen by the first seed; further seeds (of
weights and order) are run at that rate.

The clock starts with the process and stops where a checkpoint is whole on the disk: imports, building the model,
reading, training and saving all count. Preparing the shards does not: both read the same ones. Nor does evaluation:
it is done afterwards, on the checkpoints of both, by one model, one code and the same held-out examples.

A contender first trains for a few steps, which tells how long it takes to start and for a step; of that follow the
steps that it has time for, over which its learning rate warms up and then falls to 0: both end their schedule as the
time ends, and each point of a curve but the last is of a model whose rate has not fallen yet. A finished run is
kept in FOLDER/result.json: the same command after an interruption goes on with the others.
"""

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from launch.ranks import tuning
from launch.settings.recipe import load_config
from pretrain.checkpoint.store import checkpoints, find_checkpoint, step_of
from pretrain.distributed.world import World
from pretrain.export.reader import read_weights
from pretrain.model.initialize import load_parameters
from pretrain.preflight.check_run import check_run
from pretrain.training.validation import HeldOut
from tests.benchmarks.studies import (
    RECIPE,
    Results,
    data_settings,
    encoder_settings,
    heads,
    load,
    prepare,
    run,
    study_parser,
)
from tests.benchmarks.study_mini_report import best, report
from tests.command_line import ROOT, command

PICTURE = ROOT / "docs/images/study_mini.svg"
RATES = (5e-4, 1e-3, 2e-3, 4e-3)
"""The grid, the same for all: up to the rate of the demo, whose model is narrower."""
SNAPSHOTS = 10
"""Checkpoints of a run, evenly apart; the last at its end."""
SPARE = 0.02
"""Share of the time that is planned for nothing, since steps do not take the same time all the time."""


class Contender(NamedTuple):
    """One curve."""

    label: str
    ours: bool
    environment: dict[str, str]
    """Beside the user's; `maskmill` sets its own."""


CONTENDERS = {
    "ours": Contender("Maskmill", True, {}),
    "trainer": Contender("transformers' Trainer", False, {}),
    "tuned": Contender("the same with our environment", False, tuning()),
}


class Speed(NamedTuple):
    """What a short run told."""

    start: float
    """Seconds from the start of the process to the first step."""
    step: float
    """Seconds a step."""

    def steps(self, limit: float) -> int:
        """That fit into `limit` seconds."""
        return max(SNAPSHOTS, int(((1 - SPARE) * limit - self.start) / self.step))


class Run(NamedTuple):
    """One training of the study."""

    contender: str
    rate: float
    seed: int

    @property
    def name(self) -> str:
        return f"{self.contender}-{self.rate:g}-{self.seed}"


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
    for seed in range(1, arguments.seeds + 1):
        for name in arguments.contenders:
            rates = arguments.rates if seed == 1 else [best(results.values, name)[0]["rate"]]
            for rate in rates:
                measure(Run(name, rate, seed), arguments, results, data)
    report(results.values, arguments.picture)


def parse() -> argparse.Namespace:
    parser = study_parser(__doc__, "study_mini", PICTURE, layers=4, hidden=256, rates=RATES)
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=["ours", "trainer"])
    parser.add_argument("--minutes", type=float, default=6.0, help="of wall time, for each run")
    parser.add_argument("--seeds", type=int, default=1, help="of weights and order, at the best rate of each")
    parser.add_argument("--calibrate", type=int, default=48, help="steps of the short run before")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--warmup", type=float, default=0.1, help="share of the steps")
    parser.add_argument("--examples", type=int, default=32, help="a step")
    parser.add_argument("--eval-examples", type=int, default=4096)
    return parser.parse_args()


def setup(arguments: argparse.Namespace) -> dict[str, Any]:
    """What decides the figures, but for the seeds and rates, of which more may be measured later."""
    names = ("minutes", "threads", "warmup", "examples", "length", "layers", "hidden", "vocabulary")
    values = {name: getattr(arguments, name) for name in (*names, "held_out", "eval_examples")}
    return {"source": Path(arguments.source).name, **values}


def run_settings(arguments: argparse.Namespace, one: Run) -> list[str]:
    """Where ours differs from the demo's recipe: the size, one rank, the peer's activation and initial deviation, every
    checkpoint kept."""
    return [
        *encoder_settings(arguments),
        "encoder.activation=gelu",
        "encoder.initializer_range=0.02",
        f"train.global_batch={arguments.examples}",
        f"train.micro_batch={arguments.examples}",
        f"train.eval_examples={arguments.eval_examples}",
        "train.compile=off",
        f"optim.lr={one.rate:g}",
        f"schedule.warmup={arguments.warmup:g}",
        f"run.seed={one.seed}",
        "run.ranks=1",
        f"run.threads={arguments.threads}",
        "run.restarts=0",
        "checkpoint.keep=1000",
    ]


def measure(one: Run, arguments: argparse.Namespace, results: Results, data: list[str]) -> None:
    """Adds a run to `results` that they lack, and before it how fast its contender is."""
    if one.name in results.measured:
        return
    folder = arguments.folder.resolve() / one.contender
    speeds = results.values.setdefault("speeds", {})
    if one.contender not in speeds:
        speeds[one.contender] = speed_of(one, arguments, folder / "trial", data)._asdict()
    speed = Speed(**speeds[one.contender])
    results.add(one.name, measured(one, speed, arguments, folder / "run", data))
    last = results.measured[one.name]["points"][-1]
    print(f"{one.name}: {last['mask_loss']:.3f} at [MASK] after {last['seconds']:.0f} s", flush=True)


def speed_of(one: Run, arguments: argparse.Namespace, where: Path, data: list[str]) -> Speed:
    """Trains for a few steps; how long it takes to start, and for a step."""
    times = list(trained(one, arguments, data, where, arguments.calibrate, 4))
    (first, _, begun), (last, _, ended) = times[0], times[-1]
    step = (ended - begun) / (last - first)
    shutil.rmtree(where)
    speed = Speed(start=begun - first * step, step=step)
    print(f"{one.contender}: {speed.start:.1f} s to start, {speed.step:.3f} s a step", flush=True)
    return speed


def measured(
    one: Run, speed: Speed, arguments: argparse.Namespace, where: Path, data: list[str]
) -> dict[str, Any]:
    """Trains for the steps that fit into the time, and evaluates the checkpoints."""
    contender = CONTENDERS[one.contender]
    steps = speed.steps(60 * arguments.minutes)
    judge = Judge(arguments, data, one)
    points = [
        {
            "seconds": seconds,
            "step": step,
            "examples": step * arguments.examples,
            **judge.figures(contender, checkpoint),
        }
        for step, checkpoint, seconds in trained(one, arguments, data, where, steps, SNAPSHOTS)
    ]
    shutil.rmtree(where)  # gigabytes of checkpoints
    return {"label": contender.label, **one._asdict(), "steps": steps, "points": points}


def trained(
    one: Run, arguments: argparse.Namespace, data: list[str], where: Path, steps: int, snapshots: int
) -> Iterator[tuple[int, Path, float]]:
    """Trains anew in the folder `where`; (step, checkpoint, seconds from the start of the process until it was whole)
    of each checkpoint."""
    shutil.rmtree(where, ignore_errors=True)
    every = max(1, steps // snapshots)
    log = where.with_suffix(".log")
    started = time.time()
    contender = CONTENDERS[one.contender]
    if contender.ours:
        settings = [f"train.steps={steps}", f"train.checkpoint_every={every}", f"run.dir={where}"]
        settings += ["train.eval_every=0", f"train.eval_examples={arguments.examples}"]  # the peer does none
        run(command("train", RECIPE, *data, *run_settings(arguments, one), *settings), log)
        for folder in sorted(checkpoints(where), key=step_of):
            yield step_of(folder), folder, (folder / "checkpoint.json").stat().st_mtime - started
        return
    run(peer_command(one, arguments, data, where, steps, every), log, contender.environment)
    for folder in sorted(where.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2])):
        # its weights: what it writes after them is not counted against it
        seconds = (folder / "model.safetensors").stat().st_mtime - started
        yield int(folder.name.rpartition("-")[2]), folder, seconds


def peer_command(
    one: Run, arguments: argparse.Namespace, data: list[str], where: Path, steps: int, every: int
) -> list[str]:
    """The Trainer with our AdamW's settings and schedule; of each checkpoint it saves the weights alone."""
    sizes = {name: getattr(arguments, name) for name in ("layers", "hidden", "examples", "length", "threads")}
    sizes |= {"heads": heads(arguments.hidden), "seed": one.seed, "dropout": 0.0}
    settings = {
        "max_steps": steps,
        "learning_rate": one.rate,
        "lr_scheduler_type": "linear",
        "warmup_steps": round(arguments.warmup * steps),
        "weight_decay": 0.01,
        "adam_beta2": 0.98,
        "adam_epsilon": 1e-6,
        "save_strategy": "steps",
        "save_steps": every,
        "save_only_model": True,
    }
    shards = next(s for s in data if s.startswith("data.out=")).partition("=")[2]
    module = [sys.executable, "-m", "tests.benchmarks.trainer_run"]
    return [*module, shards, str(where), json.dumps(sizes), json.dumps(settings)]


class Judge:
    """Evaluates the weights of either contender: our model, our held-out evaluation, the same examples."""

    def __init__(self, arguments: argparse.Namespace, data: list[str], one: Run) -> None:
        self._config = load_config(RECIPE, [*data, *run_settings(arguments, one)])
        plan = check_run(self._config, 1)[0]
        self._words = plan.index.vocabulary.size
        self._held_out = HeldOut(plan, self._config, World())
        self._model = plan.objective.fresh_model(plan.index.vocabulary)

    def figures(self, contender: Contender, where: Path) -> dict[str, float | str]:
        """Losses, accuracies and their baselines."""
        load_parameters(self._model, self._weights(contender, where), where=str(where))
        found = self._held_out.evaluate(self._model)
        return {name.removeprefix("held_out_"): value for name, value in found.items()}

    def _weights(self, contender: Contender, where: Path) -> dict[str, Tensor]:
        if not contender.ours:
            return read_weights(where, self._config, self._words)
        checkpoint = find_checkpoint(where)
        return {name: checkpoint.tensor(name) for name in checkpoint.shapes}


if __name__ == "__main__":
    main()
