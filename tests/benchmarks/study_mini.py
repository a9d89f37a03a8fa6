"""The mini model for so many minutes, ours against transformers' Trainer. Text in, held-out loss over wall time out.

    python -m tests.benchmarks.study_mini --source BOOKS.jsonl.zst --folder FOLDER --minutes 20
    python -m tests.benchmarks.study_mini --draw FOLDER/result.json

Same architecture, initial deviation, text, vocabulary (BERT's uncased one), batches with their masks in the same
order, AdamW with the same settings, dropout 0, fp32, threads. Ours is `maskmill train bert_mini` as a user starts it;
the peer is the one of bench_step.py.

The clock starts with the process and stops where a checkpoint is whole on the disk: imports, building the model,
reading, training and saving all count. Preparing the shards does not: both read the same ones. Nor does evaluation:
it is done afterwards, on the checkpoints of both, by one model, one code and the same held-out examples.

A contender first trains for a few steps, which tells how long it takes to start and for a step; of that follow the
steps that it has time for, over which its learning rate warms up and then falls to 0: both end their schedule as the
time ends, and each point of a curve but the last is of a model whose rate has not fallen yet. A finished contender is
kept in FOLDER/result.json: the same command after an interruption goes on with the other.
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

import numpy as np
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
from tests.benchmarks.pictures import Line, Panel, svg
from tests.benchmarks.studies import (
    Results,
    data_settings,
    load,
    markdown,
    prepare,
    run,
    study_parser,
)
from tests.command_line import ROOT, VOCABULARY, command

PICTURE = ROOT / "docs/images/study_mini.svg"
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


def main() -> None:
    arguments = parse()
    if arguments.draw:
        report(load(arguments.draw), arguments.picture)
        return
    folder = arguments.folder.resolve()
    torch.set_num_threads(arguments.threads)
    data = data_settings(arguments, folder, VOCABULARY)
    prepare(folder, "bert_mini", data)
    results = Results(folder / "result.json", setup(arguments))
    for name in arguments.contenders:
        if name not in results.measured:
            results.add(name, measured(name, arguments, folder, data))
            last = results.measured[name]["points"][-1]
            print(f"{name}: masked loss {last['mask_loss']:.3f} after {last['seconds']:.0f} s", flush=True)
    report(results.values, arguments.picture)


def parse() -> argparse.Namespace:
    parser = study_parser(__doc__, "study_mini", PICTURE, length=128, layers=4, hidden=256)
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=["ours", "trainer"])
    parser.add_argument("--minutes", type=float, default=20.0, help="of wall time, for each contender")
    parser.add_argument("--calibrate", type=int, default=96, help="steps of the short run before")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate of ours")
    parser.add_argument("--peer-rate", type=float, default=1e-3, help="of the Trainer")
    parser.add_argument("--warmup", type=float, default=0.05, help="share of the steps")
    parser.add_argument("--examples", type=int, default=32, help="a step")
    parser.add_argument("--eval-examples", type=int, default=2048)
    return parser.parse_args()


def setup(arguments: argparse.Namespace) -> dict[str, Any]:
    """What decides the figures."""
    names = ("minutes", "threads", "rate", "peer_rate", "warmup", "examples", "length", "layers", "hidden")
    values = {name: getattr(arguments, name) for name in (*names, "held_out", "eval_examples")}
    return {"source": Path(arguments.source).name, **values}


def run_settings(arguments: argparse.Namespace) -> list[str]:
    """Where ours differs from bert_mini: batch and threads for two cores, the peer's activation, every checkpoint
    kept."""
    return [
        f"encoder.layers={arguments.layers}",
        f"encoder.hidden={arguments.hidden}",
        f"encoder.heads={max(1, arguments.hidden // 64)}",
        f"encoder.intermediate={4 * arguments.hidden}",
        f"encoder.max_positions={arguments.length}",
        "encoder.activation=gelu",
        f"train.global_batch={arguments.examples}",
        f"train.micro_batch={arguments.examples}",
        f"train.eval_examples={arguments.eval_examples}",
        "train.compile=off",
        f"optim.lr={arguments.rate:g}",
        "optim.weight_decay=0.01",
        f"schedule.warmup={arguments.warmup:g}",
        "run.ranks=1",
        f"run.threads={arguments.threads}",
        "run.restarts=0",
        "checkpoint.keep=1000",
    ]


def measured(name: str, arguments: argparse.Namespace, folder: Path, data: list[str]) -> dict[str, Any]:
    """One contender: its speed, its run, its checkpoints evaluated."""
    limit = 60 * arguments.minutes
    trial = folder / name / "trial"
    times = list(trained(name, arguments, data, trial, arguments.calibrate, 4))
    (first, _, begun), (last, _, ended) = times[0], times[-1]
    step = (ended - begun) / (last - first)
    speed = Speed(start=begun - first * step, step=step)
    steps = speed.steps(limit)
    print(f"{name}: {speed.start:.1f} s to start, {speed.step:.3f} s a step: {steps} steps", flush=True)
    shutil.rmtree(trial)
    judge = Judge(arguments, data)
    points = [
        {
            "seconds": seconds,
            "step": step,
            "examples": step * arguments.examples,
            **judge.figures(CONTENDERS[name], where),
        }
        for step, where, seconds in trained(name, arguments, data, folder / name / "run", steps, SNAPSHOTS)
    ]
    shutil.rmtree(folder / name / "run")  # gigabytes of checkpoints
    return {"label": CONTENDERS[name].label, "steps": steps, **speed._asdict(), "points": points}


def trained(
    name: str, arguments: argparse.Namespace, data: list[str], where: Path, steps: int, snapshots: int
) -> Iterator[tuple[int, Path, float]]:
    """Trains anew in the folder `where`; (step, checkpoint, seconds from the start of the process until it was whole)
    of each checkpoint."""
    shutil.rmtree(where, ignore_errors=True)
    every = max(1, steps // snapshots)
    log = where.with_suffix(".log")
    started = time.time()
    if CONTENDERS[name].ours:
        settings = [f"train.steps={steps}", f"train.checkpoint_every={every}", f"run.dir={where}"]
        settings += ["train.eval_every=0", f"train.eval_examples={arguments.examples}"]  # the peer does none
        run(command("train", "bert_mini", *data, *run_settings(arguments), *settings), log)
        for folder in sorted(checkpoints(where), key=step_of):
            yield step_of(folder), folder, (folder / "checkpoint.json").stat().st_mtime - started
        return
    run(peer_command(arguments, data, where, steps, every), log, CONTENDERS[name].environment)
    for folder in sorted(where.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2])):
        # its weights: what it writes after them is not counted against it
        seconds = (folder / "model.safetensors").stat().st_mtime - started
        yield int(folder.name.rpartition("-")[2]), folder, seconds


def peer_command(
    arguments: argparse.Namespace, data: list[str], where: Path, steps: int, every: int
) -> list[str]:
    """The Trainer with our AdamW's settings and schedule; of each checkpoint it saves the weights alone."""
    sizes = {name: getattr(arguments, name) for name in ("layers", "hidden", "examples", "length", "threads")}
    settings = {
        "max_steps": steps,
        "learning_rate": arguments.peer_rate,
        "lr_scheduler_type": "linear",
        "warmup_steps": round(arguments.warmup * steps),
        "weight_decay": 0.01,
        "adam_epsilon": 1e-6,
        "save_strategy": "steps",
        "save_steps": every,
        "save_only_model": True,
    }
    shards = next(s for s in data if s.startswith("data.out=")).partition("=")[2]
    module = [sys.executable, "-m", "tests.benchmarks.trainer_run"]
    return [*module, shards, str(where), json.dumps(sizes | {"dropout": 0.0}), json.dumps(settings)]


class Judge:
    """Evaluates the weights of either contender: our model, our held-out evaluation, the same examples."""

    def __init__(self, arguments: argparse.Namespace, data: list[str]) -> None:
        self._config = load_config("bert_mini", [*data, *run_settings(arguments)])
        plan = check_run(self._config, 1)[0]
        self._words = plan.index.vocabulary.size
        self._held_out = HeldOut(plan, self._config, World())
        self._model = plan.objective.fresh_model(plan.index.vocabulary)

    def figures(self, contender: Contender, where: Path) -> dict[str, float | str]:
        """Losses, accuracies and their baselines."""
        load_parameters(self._model, self._weights(contender, where), where=str(where))
        found = self._held_out.evaluate(self._model)  # type: ignore[arg-type]  (a model is all that it needs)
        return {name.removeprefix("held_out_"): value for name, value in found.items()}

    def _weights(self, contender: Contender, where: Path) -> dict[str, Tensor]:
        if not contender.ours:
            return read_weights(where, self._config, self._words)
        checkpoint = find_checkpoint(where)
        return {name: checkpoint.tensor(name) for name in checkpoint.shapes}


def report(result: dict[str, Any], picture: Path) -> None:
    """Prints the tables and draws the picture of what has been measured so far."""
    contenders, setup = result["measured"], result["setup"]
    head = [
        "",
        "steps",
        "s a step",
        "ended after",
        "held-out loss at [MASK]",
        "accuracy at [MASK]",
        "NSP accuracy",
    ]
    rows = []
    for found in contenders.values():
        last = found["points"][-1]
        accuracies = [f"{last[f'{term}_accuracy']:.1%}" for term in ("mask", "nsp")]
        times = [f"{found['steps']:,}", f"{found['step']:.2f}", f"{last['seconds']:,.0f} s"]
        rows.append([found["label"], *times, f"{last['mask_loss']:.3f}", *accuracies])
    print(markdown(head, rows) + "\n")
    print(
        markdown(
            ["held-out loss at [MASK] after", *(c["label"] for c in contenders.values())], by_time(result)
        )
    )
    for line in sooner(contenders):
        print(line)
    entropy = next(iter(contenders.values()))["points"][-1]["mask_unigram_loss"]
    lines = [
        Line(
            f"{c['label']} ({c['steps']:,} steps)",
            [(p["seconds"] / 60, p["mask_loss"]) for p in c["points"]],
            n,
        )
        for n, c in enumerate(contenders.values())
    ]
    words = "; ".join(f"{c['label']}: {c['points'][-1]['mask_loss']:.3f}" for c in contenders.values())
    title = f"{setup['minutes']:g} minutes of the mini model"
    axes = ("minutes since the start of the process", "held-out loss at [MASK] (nats)")
    panel = Panel(title, *axes, lines, {"frequencies of words alone": entropy})
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture.write_text(svg([panel], f"Held-out loss at [MASK] over wall time. At the end: {words}."), "utf-8")
    print(f"\npicture: {picture}")


def by_time(result: dict[str, Any], rows: int = 8) -> list[list[str]]:
    """The curves at equal times, between checkpoints by straight lines; nothing before the first checkpoint."""
    limit = 60 * result["setup"]["minutes"]
    table = []
    for seconds in np.linspace(limit / rows, limit, rows).tolist():
        cells = []
        for found in result["measured"].values():
            at, losses = curve(found)
            cells.append(f"{np.interp(seconds, at, losses):.3f}" if seconds >= at[0] else "no checkpoint yet")
        table.append([f"{seconds / 60:g} min", *cells])
    return table


def curve(found: dict[str, Any]) -> tuple[list[float], list[float]]:
    points = found["points"]
    return [p["seconds"] for p in points], [p["mask_loss"] for p in points]


def sooner(contenders: dict[str, Any]) -> Iterator[str]:
    """When ours had reached what each other ended with."""
    if "ours" not in contenders:
        return
    at, losses = curve(contenders["ours"])
    for name, found in contenders.items():
        ended, goal = (values[-1] for values in curve(found))
        if name != "ours" and losses[-1] <= goal:
            place = next(i for i, loss in enumerate(losses) if loss <= goal)
            yield (
                f"\nMaskmill was at or below the last loss of {found['label']} ({goal:.3f} after {ended:.0f} s) at its "
                f"checkpoint of {at[place]:.0f} s"
            )


if __name__ == "__main__":
    main()
