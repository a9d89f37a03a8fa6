"""Training runs with disturbances in; what each rank said of each run out, on ranks of their own.

said = train(2, [([*settings, "train.on_nan=stop"], [Disturbance(batch=3, rank=1, factor=math.nan)]), ...])
"""

import os
from dataclasses import dataclass
from typing import Any

from launch.ranks import free_port
from tests.multirank.ranks import run


@dataclass(frozen=True)
class Disturbance:
    """What one rank's loss in one batch is multiplied with."""

    batch: int
    rank: int
    factor: float


Runs = list[tuple[list[str], list[Disturbance]]]


def train(ranks: int, runs: Runs) -> list[list[str]]:
    """One run after the other, each to its end or to a UserError; what the ranks said: the error, or nothing."""
    return run(_train, ranks, runs, [free_port() for _ in runs], timeout=540)


def _train(runs: Runs, ports: list[int]) -> list[str]:
    del os.environ["TORCHELASTIC_USE_AGENT_STORE"]  # each run meets anew, at a port of its own
    said = []
    for (settings, disturbances), port in zip(runs, ports, strict=True):
        os.environ["MASTER_PORT"] = str(port)
        said.append(_train_once(settings, {(d.batch, d.rank): d.factor for d in disturbances}))
    return said


def _train_once(settings: list[str], factors: dict[tuple[int, int], float]) -> str:
    import pytest
    from rich.console import Console

    from data_pipeline.errors import UserError
    from launch.recipe import load_config
    from pretrain import train as training
    from pretrain.distributed.engine import Engine
    from pretrain.distributed.watchdog import Watchdog

    now, seed_dropout, call = [0], training.seed_dropout, Engine.__call__

    def noted(seed: int, batch: int, rank: int, micro_batch: int) -> None:
        now[0] = batch
        seed_dropout(seed, batch, rank, micro_batch)

    def disturbed(engine: Engine, *arguments: Any, **options: Any) -> Any:
        terms, carry = call(engine, *arguments, **options)
        factor = factors.get((now[0], int(os.environ["RANK"])), 1.0)
        for name, term in terms.items():
            if engine.module.training and factor != 1.0:
                terms[name] = term._replace(sum=term.sum * factor)
        return terms, carry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "seed_dropout", noted)
        patch.setattr(Engine, "__call__", disturbed)
        try:
            config = load_config("demo", settings)
            training.train(config, Console(quiet=True), "test", Watchdog(config.run))
        except (UserError, RuntimeError) as error:
            return str(error)
        except SystemExit as end:
            return f"exit code {end.code}"
    return ""
