"""ZeRO's stages, fp16, the host's memory and all optimizers on one GPU, and ZeRO over NCCL where there are several."""

import shutil
import statistics
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.gpu_day.checks import (
    all_train,
    losses_of,
    member,
    not_fallen,
    settings_512,
    short,
    trained,
    weights_sha,
)
from tests.gpu_day.runs import Day, Failed, LeftOut, metrics, train_command

OTHERS = ("optim.lr=1e-3", "train.precision=bf16")
"""Of runs with another optimizer than LAMB, whose rate is higher."""
KINDS = {
    "stage 0": ("zero.stage=0", "train.precision=bf16"),
    "stage 2": ("zero.stage=2", "train.precision=bf16"),
    "stage 3": ("zero.stage=3", "train.precision=bf16"),
    "fp16": ("zero.stage=1", "train.precision=fp16"),
    "stage 2 on the host": ("zero.stage=2", "zero.offload=cpu", "train.precision=bf16"),
    "stage 3 on the host": ("zero.stage=3", "zero.offload=cpu", "train.precision=bf16"),
    "adamw": ("zero.stage=1", "optim.name=adamw", *OTHERS),
    "stable_adamw": ("zero.stage=1", "optim.name=stable_adamw", *OTHERS),
    "stable_adamw, stage 3": ("zero.stage=3", "optim.name=stable_adamw", *OTHERS),
    "muon": ("zero.stage=1", "optim.name=muon", *OTHERS),
    "muon, stage 2": ("zero.stage=2", "optim.name=muon", *OTHERS),
    "muon in bf16": ("zero.stage=1", "optim.name=muon", "optim.muon_precision=bf16", *OTHERS),
}
"""Of what a run may be told, what no other part has: those are at stage 1 in bf16 with LAMB, but for EuroBERT's."""
MOVES = ((1, 3), (3, 0))
"""Stages at which a run is saved, and goes on."""
STAGES = (0, 1, 2, 3)
COUNTS = (1, 2, 4, 8)
"""GPUs at which speed is measured, as far as there are so many."""
BASE = ("encoder.layers=12", "encoder.hidden=768", "encoder.heads=12", "encoder.intermediate=3072")
EACH = 64
"""Examples of a step for each GPU."""


def stages(day: Day, figures: dict[str, Any]) -> None:
    """ZeRO 0, 2 and 3, fp16, masters on the host, other optimizers, a run that moves to another stage: losses fall."""
    bert = member(day, "bert")
    wanted: dict[str, Callable[[], str]] = {
        name: partial(trained, day, f"stages {name}", [*bert, *settings]) for name, settings in KINDS.items()
    }
    wanted |= {f"{before} to {after}": partial(moved, day, bert, before, after) for before, after in MOVES}
    all_train(day, figures, wanted)


def moved(day: Day, settings: list[str], before: int, after: int) -> str:
    """Train half of a run at one stage and the rest at another; return what went wrong, nothing if nothing did."""
    run, half = day.out / f"stages {before} to {after}", short(day) // 2
    command = partial(train_command, run, "demo", *settings, f"train.steps={short(day)}")
    try:
        day.python(*command("train.precision=bf16", f"zero.stage={before}", f"run.stop_after={half}"))
        said = day.python(*command("train.precision=bf16", f"zero.stage={after}"))
    except (Failed, subprocess.TimeoutExpired) as error:
        return str(error)
    losses = losses_of(run)
    shutil.rmtree(run)
    if f"resuming from step {half}" not in said:
        return "it began anew"
    if day.tiny:
        return ""
    # what was learnt before is still there in the first steps after
    return not_fallen(losses[: half + 5]) or not_fallen(losses)


def ranks(day: Day, figures: dict[str, Any]) -> None:
    """On all GPUs over NCCL: each ZeRO stage twice ends with the same bytes; examples/s at 1, 2, 4 and 8."""
    if day.gpus < 2:
        raise LeftOut(f"needs two GPUs, torch sees {day.gpus}")
    figures["GPUs"] = day.gpus
    differing = []
    for stage in STAGES:
        first, second = (ended(day, stage, attempt) for attempt in ("first", "second"))
        figures[f"stage {stage}"] = first if first == second else "differs"
        differing += [str(stage)] if first != second else []
    for count in (count for count in COUNTS if count <= day.gpus):
        figures[f"examples/s, {count}"] = examples_per_second(day, count)
    if differing:
        raise Failed(f"the weights differ at stage {', '.join(differing)}")


def ended(day: Day, stage: int, attempt: str) -> str:
    """Train on all GPUs at a stage; return the SHA-256 of the weights and moments."""
    run = day.out / f"ranks {stage} {attempt}"
    day.train(run, "long", *settings_512(day), f"zero.stage={stage}", ranks=day.gpus)
    sha = weights_sha(run)
    shutil.rmtree(run)
    return sha


def examples_per_second(day: Day, count: int) -> float:
    """Train BERT-base in examples of 512 on so many GPUs, each with the same number of them; return the median over the
    steps of the second half."""
    run = day.out / f"ranks {count}"
    size = ("train.steps=4", "train.micro_batch=2", f"train.global_batch={4 * count}", "train.log_every=1")
    if not day.tiny:
        batch = (f"train.micro_batch={EACH // 2}", f"train.global_batch={EACH * count}")
        size = (*BASE, "train.steps=60", "train.log_every=5", *batch)
    length = ("encoder.max_positions=512", "train.eval_every=0", "train.checkpoint_every=0")
    day.train(run, "long", *length, *size, ranks=count)
    speeds = speeds_of(run)
    shutil.rmtree(run)
    return statistics.median(speeds[len(speeds) // 2 :])


def speeds_of(run: Path) -> list[float]:
    """Return the examples/s of each line that was logged."""
    return [float(line["examples_per_s"]) for line in metrics(run) if "examples_per_s" in line]
