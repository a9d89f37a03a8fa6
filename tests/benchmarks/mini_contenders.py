"""Define who takes part in study_mini.py: with which model and settings each trains, and how its weights are judged."""

import argparse
import json
import math
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from torch import Tensor

from launch.ranks import tuning
from launch.recipe import load_config
from pretrain.checkpoint.store import checkpoints, find_checkpoint, step_of
from pretrain.config.settings import RunConfig
from pretrain.distributed.world import World
from pretrain.huggingface.folder import read_weights
from pretrain.huggingface.registry import chosen_families
from pretrain.model.initialize import load_parameters
from pretrain.preflight.check_run import check_run
from pretrain.training.validation import HeldOut
from tests.benchmarks.studies import RECIPE, run
from tests.command_line import command


class Contender(NamedTuple):
    """One curve."""

    label: str
    ours: bool
    environment: Mapping[str, str] = MappingProxyType({})
    """Beside the user's; `maskmill` sets its own."""
    size: tuple[int, int] | None = None
    """Layers and width; None: --layers and --hidden."""
    initializer_range: float = 0.02
    settings: tuple[str, ...] = ()
    """Beside the size, of ours or of the run whose class the peer trains; without any the peer is a BERT."""
    per_thread: bool = False
    """Ours: as many ranks as threads, each with one."""
    examples: int = 0
    """In a step; 0: --examples."""
    precision: str = "fp32"
    """Of matrix products: `fp32`, or `bf16` where the CPU has AVX512-BF16."""


SMALL: Any = {"size": (2, 128), "initializer_range": 0.05}
"""The demo's model."""
WIDE: Any = {"size": (2, 192), "initializer_range": 0.05, "precision": "bf16"}
"""What learns more in twenty minutes where bf16 is the CPU's own."""
MUON = ("optim.name=muon",)
GATED = "encoder.gated=true"
MODERN = (
    *("encoder.norm_place=pre", "encoder.positions=rope", GATED),
    *("encoder.biases=false", "encoder.norm_biases=false"),
)
MODERN_DECAY = (*MUON, *MODERN, "optim.weight_decay=0.1")
MODERN_MLM = (*MODERN, "objective.name=mlm", "encoder.segments=0", "encoder.layer_norm_eps=1e-5")
"""As ModernBertForMaskedLM has it: without segments and pairs."""
CONTENDERS = {
    "ours": Contender("Maskmill", True),
    "trainer": Contender("transformers' Trainer", False),
    "tuned": Contender("transformers' Trainer, our environment", False, tuning()),
    "small-trainer": Contender("transformers' Trainer, 2 x 128", False, **SMALL),
    "small": Contender("Maskmill, 2 x 128", True, **SMALL, per_thread=True),
    "muon": Contender("Maskmill, Muon", True, **SMALL, per_thread=True, settings=MUON),
    "modern": Contender(
        "Maskmill, Muon, modern body", True, **SMALL, per_thread=True, settings=MUON + MODERN
    ),
    "fast": Contender(
        "Maskmill, Muon, modern body, 64 examples",
        True,
        **SMALL,
        per_thread=True,
        examples=64,
        settings=MUON + MODERN,
    ),
    "wide": Contender(
        "Maskmill at its best", True, **WIDE, per_thread=True, examples=64, settings=MODERN_DECAY
    ),
    "wide-trainer": Contender("transformers' Trainer, 2 x 192", False, **WIDE),
    "modern-trainer": Contender("transformers' Trainer, ModernBERT", False, **SMALL, settings=MODERN_MLM),
}


class Run(NamedTuple):
    """One training of the study."""

    contender: str
    rate: float
    seed: int

    @property
    def name(self) -> str:
        return f"{self.contender}-{self.rate:g}-{self.seed}"


def run_settings(arguments: argparse.Namespace, one: Run, threads: int = 1) -> list[str]:
    """Where ours differs from the demo's recipe: the size, AdamW, the peer's activation and initial deviation, every
    checkpoint kept."""
    contender = CONTENDERS[one.contender]
    # a gated layer's three matrices of half the width: three quarters of the parameters of two of the full one
    widening = 2 if GATED in contender.settings else 4
    examples = examples_of(contender, arguments)
    ranks = math.gcd(threads, examples) if contender.per_thread else 1
    return [
        *encoder_settings(arguments, *size(contender, arguments), widening),
        "encoder.activation=gelu",
        f"encoder.initializer_range={contender.initializer_range:g}",
        f"train.global_batch={examples}",
        f"train.micro_batch={examples // ranks}",
        f"train.eval_examples={arguments.eval_examples}",
        f"train.precision={contender.precision}",
        "train.compile=off",
        "optim.name=adamw",
        f"optim.lr={one.rate:g}",
        f"schedule.warmup={arguments.warmup:g}",
        f"run.seed={one.seed}",
        f"run.ranks={ranks}",
        f"run.threads={threads // ranks}",
        "run.restarts=0",
        "checkpoint.keep=1000",
        *contender.settings,
    ]


def encoder_settings(arguments: argparse.Namespace, layers: int, hidden: int, widening: int) -> list[str]:
    """Settings of the encoder: heads of 64, or of 32 where it is no wider than 128, as in the demo; a feed-forward
    layer `widening` times as wide as the rest."""
    return [
        f"encoder.layers={layers}",
        f"encoder.hidden={hidden}",
        f"encoder.heads={heads(hidden)}",
        f"encoder.intermediate={widening * hidden}",
        f"encoder.max_positions={arguments.length}",
    ]


def heads(hidden: int) -> int:
    """Number of attention heads for a width."""
    return max(1, hidden // (64 if hidden > 128 else 32))


def size(contender: Contender, arguments: argparse.Namespace) -> tuple[int, int]:
    """Layers and width."""
    return contender.size or (arguments.layers, arguments.hidden)


def examples_of(contender: Contender, arguments: argparse.Namespace) -> int:
    """Number of examples in a step."""
    return contender.examples or arguments.examples


def trained(
    one: Run,
    arguments: argparse.Namespace,
    data: list[str],
    where: Path,
    steps: int,
    snapshots: int,
    threads: int,
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
        run(command("train", RECIPE, *data, *run_settings(arguments, one, threads), *settings), log)
        for folder in sorted(checkpoints(where), key=step_of):
            yield step_of(folder), folder, (folder / "checkpoint.json").stat().st_mtime - started
        return
    run(peer_command(one, arguments, data, where, steps, every, threads), log, contender.environment)
    for folder in sorted(where.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2])):
        # its weights: what it writes after them is not counted against it
        seconds = (folder / "model.safetensors").stat().st_mtime - started
        yield int(folder.name.rpartition("-")[2]), folder, seconds


def peer_command(
    one: Run,
    arguments: argparse.Namespace,
    data: list[str],
    where: Path,
    steps: int,
    every: int,
    threads: int,
) -> list[str]:
    """The Trainer with our AdamW's settings and schedule; of each checkpoint it saves the weights alone."""
    contender = CONTENDERS[one.contender]
    layers, hidden = size(contender, arguments)
    sizes = {"layers": layers, "hidden": hidden, "heads": heads(hidden), "threads": threads}
    sizes |= {"length": arguments.length, "examples": examples_of(contender, arguments), "seed": one.seed}
    sizes |= {"initializer_range": contender.initializer_range, "dropout": 0.0}
    if contender.settings:
        sizes |= class_of(our_config(arguments, data, one))
    settings = {
        "max_steps": steps,
        "learning_rate": one.rate,
        "lr_scheduler_type": "linear",
        "warmup_steps": round(arguments.warmup * steps),
        "weight_decay": 0.01,
        "adam_beta2": 0.98,
        "adam_epsilon": 1e-6,
        "bf16": contender.precision == "bf16",
        "save_strategy": "steps",
        "save_steps": every,
        "save_only_model": True,
    }
    module = [sys.executable, "-m", "tests.benchmarks.trainer_run"]
    return [*module, shards_of(data), str(where), json.dumps(sizes), json.dumps(settings)]


def shards_of(data: list[str]) -> str:
    """The folder that the settings of the data name."""
    return next(setting for setting in data if setting.startswith("data.out=")).partition("=")[2]


def our_config(arguments: argparse.Namespace, data: list[str], one: Run) -> RunConfig:
    """The configuration of a run of ours that has the model of `one`, on the shards as they are."""
    settings = [*data, f"train.shards={shards_of(data)}", *run_settings(arguments, one)]
    return load_config(RECIPE, settings)


def class_of(config: RunConfig) -> dict[str, Any]:
    """The class of transformers that a run leaves as, and the fields of its configuration."""
    plan = check_run(config, 1)[0]
    family = chosen_families(plan.objective.families, config)[0]
    return {"class": family.export_class, "config": family.config(config, plan.index.vocabulary)}


class Judge:
    """Evaluates the weights of either contender: our model, our held-out evaluation, the same examples."""

    def __init__(self, arguments: argparse.Namespace, data: list[str], one: Run) -> None:
        self._config = our_config(arguments, data, one)
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
