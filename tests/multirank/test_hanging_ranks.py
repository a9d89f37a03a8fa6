"""A rank that hangs outside the training loop is ended, and so are those that wait for it; a slow start is not."""

import os
import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ranks import RankFailed, run
from rich.console import Console

from launch.recipe import load_config
from pretrain import train
from pretrain.config.settings import RunSettings
from pretrain.distributed import watchdog
from pretrain.distributed.watchdog import STEPS, Watchdog
from tests.command_line import Maskmill

pytestmark = pytest.mark.multirank

LIMIT = 1.5
NOWHERE = ("", -1)
STAGES = [
    "connecting",
    "checking settings and shards",
    "opening the run folder, from the mirror if it is empty",
    "building the model and the engine",
    "looking for the newest whole checkpoint, here and in the mirror",
    "loading a checkpoint or init_from",
    "opening the run log and W&B",
    "preparing the phase, compiling",
    "reading held-out examples",
    STEPS,
    "leaving the training loop",
    "finishing the last checkpoint and its copy",
    "closing the run log and W&B",
    "writing the report",
    "leaving the other ranks",
]
"""What a rank's log says that it did, of a run without a fault."""


class ImpatientAt(Watchdog):
    """Has the short limit at one stage, so that the others may take as long as the machine makes them."""

    def __init__(self, at: str, settings: RunSettings) -> None:
        super().__init__(settings)
        self._at = at

    def stage(self, name: str) -> None:
        self._run.stage_limit = LIMIT if name == self._at else 120.0
        super().stage(name)


class Slow(Watchdog):
    """Takes a part of the limit at each stage of the start, and more than it in all."""

    def stage(self, name: str) -> None:
        super().stage(name)
        if STAGES.index(name) < STAGES.index(STEPS):
            time.sleep(0.16 * self._run.stage_limit)


def trained(settings: list[str], dog: Callable[[RunSettings], Watchdog], place: tuple[str, int]) -> float:
    """`maskmill train` on this rank, with the log that a launcher gives it; its seconds. It hangs in `place`: a
    function, on a rank."""
    import deepspeed  # noqa: F401  seconds, which are no part of a stage here

    config, rank = load_config("demo", settings), int(os.environ["RANK"])
    log = Path(config.run.dir) / "logs" / f"rank-{rank}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT), 2)
    watchdog.STACK_SECONDS = 2.0  # long enough for both ranks to write their stacks

    def hangs(*_arguments: Any) -> None:
        time.sleep(600)

    began = time.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        if rank == place[1]:
            patch.setattr(place[0], hangs)
        train.train(config, Console(quiet=True), "maskmill train demo", dog(config.run))
    return time.monotonic() - began


@pytest.fixture(scope="module")
def begun(tiny: list[str], maskmill: Maskmill, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that stopped at its first checkpoint."""
    folder = tmp_path_factory.mktemp("begun") / "run"
    run(trained, 1, [*tiny, f"run.dir={folder}", "run.stop_after=2"], Watchdog, NOWHERE)
    return folder


@pytest.mark.parametrize(
    ("stage", "place", "waits"),
    [
        ("connecting", ("pretrain.distributed.world.World.start", 1), "in _connect"),
        ("loading a checkpoint or init_from", ("pretrain.training.resume._load", 1), ""),
        ("closing the run log and W&B", ("pretrain.monitoring.run_log.RunLog.__exit__", 0), "in gather"),
        pytest.param(
            "leaving the other ranks",
            ("pretrain.distributed.world.World.stop", 1),
            "",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["connecting", "loading", "closing", "leaving"],
)
def test_a_rank_that_hangs_is_ended(
    begun: Path, tiny: list[str], stage: str, place: tuple[str, int], waits: str
) -> None:
    settings = [*tiny, f"run.dir={begun}", "run.ranks=2", "run.stop_after=3"]
    hanging = place[1]
    with pytest.raises(RankFailed, match="died with exit code -14"):  # SIGALRM
        run(trained, 2, settings, partial(ImpatientAt, stage), place)
    logs = [(begun / "logs" / f"rank-{rank}.log").read_text() for rank in range(2)]
    told, _, stack = logs[hanging].rpartition("Timeout (0:00:01.5")
    assert told.splitlines()[-1].endswith(f"] {stage} (run.stage_limit: 1.5 s)")
    assert "in hangs" in stack
    if waits:
        assert waits in logs[1 - hanging].rpartition("Timeout (0:00:01.5")[2]


def test_every_stage_is_told_and_limited(begun: Path) -> None:
    log = (begun / "logs" / "rank-0.log").read_text()
    assert re.findall(r"\] (.+) \(run\.", log)[: len(STAGES)] == STAGES


@pytest.mark.slow
def test_a_start_may_take_longer_than_each_of_its_stages(tiny: list[str], tmp_path: Path) -> None:
    settings = [*tiny, f"run.dir={tmp_path / 'run'}", "run.stage_limit=15"]
    (seconds,) = run(trained, 1, settings, Slow, NOWHERE)
    assert seconds > 15 + watchdog.STACK_SECONDS
    assert "Timeout" not in (tmp_path / "run" / "logs" / "rank-0.log").read_text()
