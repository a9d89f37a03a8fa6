"""A data stall, a slow rank and a slow step are told apart; ranks refuse together. Time is a counter, not a clock."""

import io
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run
from rich.console import Console

from data_pipeline.errors import UserError
from data_pipeline.loader.loader import Prefetch
from launch.recipe import load_config
from pretrain.distributed.engine import Engine
from pretrain.distributed.watchdog import Watchdog
from pretrain.distributed.world import World, raise_on_all_ranks
from pretrain.model.encoder import Encoder
from pretrain.monitoring.run_log import RunLog
from pretrain.train import train
from pretrain.training import rank_timing
from pretrain.training.rank_timing import MIN_STEPS, Lap, RankPace, figures, slowdowns

pytestmark = pytest.mark.slow

STEPS = 12
SLOW_STEP = 9
PHASES = ("calm", "data", "rank", "step", "calm_again")


def rank_pace(**changes: Any) -> RankPace:
    usual = Lap(7, 0.11, 0.0, 0.04, 100)
    values: dict[str, Any] = {
        "laps": 10, "step": 0.1, "waited": 0.0, "forward": 0.04, "a_token": 0.0004, "worst": usual,
    }  # fmt: skip
    return RankPace(**values | changes)


SLOW = {"forward": 0.08, "a_token": 0.0008}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([rank_pace()] * 4, []),
        ([rank_pace(waited=0.04)] * 4, []),
        ([rank_pace(waited=0.3)], ["waiting for data: the loader 30 ms of a step, 30% of the time"]),
        ([rank_pace(waited=0.3)] * 2, ["waiting for data: rank 0 most, 30 ms"]),
        ([rank_pace(), rank_pace(waited=0.3)], ["waiting for data: rank 1, and not the others, 30 ms"]),
        (
            [rank_pace(), rank_pace(), rank_pace(), rank_pace(**SLOW)],
            ["rank 3 is 2.0x slower than the median: 80 ms computing forward passes in a step, the others 40 ms"],
        ),
        ([rank_pace(forward=0.08), rank_pace()], []),  # twice the tokens, not a slow rank
        ([rank_pace(**SLOW)], []),
        ([rank_pace(laps=MIN_STEPS - 1), rank_pace(laps=MIN_STEPS - 1, **SLOW)], []),
        (
            [rank_pace(), rank_pace(worst=Lap(8, 0.5, 0.4, 0.04, 100))],
            ["an outlier: step 8 took 500 ms, 5.0x the median, of which rank 1 was waiting for data for 400 ms"],
        ),
        (
            [rank_pace(), rank_pace(worst=Lap(8, 0.5, 0.0, 0.2, 100))],
            ["an outlier: step 8 took 500 ms, 5.0x the median, of which rank 1 was computing forward passes for 200"],
        ),
        (
            [rank_pace(worst=Lap(8, 0.5, 0.0, 0.04, 100))] * 2,
            ["an outlier: step 8 took 500 ms, 5.0x the median, in neither data nor forward passes"],
        ),
    ],
)  # fmt: skip
def test_what_held_the_run_up_in_words(rows: list[RankPace], words: list[str]) -> None:
    found = slowdowns(rows)
    assert len(found) == len(words)
    for line, expected in zip(found, words, strict=True):
        assert line.startswith(expected), line


def test_the_slowest_step_of_a_long_interval_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(rank_timing, "clock", lambda: now[0])
    timed = rank_timing.Pace(torch.device("cpu"))
    for step in range(3 * rank_timing.WINDOW):
        timed.start()
        now[0] += 5.0 if step == 7 else 0.1
        timed.lap(step, waited=0.0)
    figures_, words = timed.read(World())
    assert figures_["slowest_step_ms"] == pytest.approx(5000)
    assert words == [line for line in words if line.startswith("an outlier: step 7 took 5,000 ms")] != []
    timed.start()
    now[0] += 0.1
    timed.lap(1000, waited=0.0)
    assert timed.read(World())[0]["slowest_step_ms"] == pytest.approx(100), "each interval has its own"


def test_figures_of_the_log() -> None:
    found = figures([rank_pace(), rank_pace(step=0.2, worst=Lap(7, 0.3, 0, 0, 1)), rank_pace(**SLOW)])
    by_rank = {name: found.pop(f"{name}_ms_by_rank") for name in ("step", "forward")}
    assert by_rank["step"] == pytest.approx([100, 200, 1e3 * rank_pace(**SLOW).step])
    assert by_rank["forward"] == pytest.approx(
        [1e3 * row.forward for row in (rank_pace(), rank_pace(), rank_pace(**SLOW))]
    )
    assert found == pytest.approx(
        {
            "step_ms": 200,
            "slowest_step_ms": 300,
            "forward_ms": 80,
            "slowest_rank": 2,
            "slowest_rank_ratio": 2.0,
        }
    )
    by_rank_names = {"step_ms_by_rank", "forward_ms_by_rank"}
    assert set(figures([rank_pace()])) == {"step_ms", "slowest_step_ms", "forward_ms"} | by_rank_names


class Counter:
    """Time that passes only where it is told to: in the loader, in forward passes, in the optimizer."""

    def __init__(self, rank: int, patch: pytest.MonkeyPatch) -> None:
        self.now, self.phase, self.step, self.rank = 0.0, "", 0, rank
        next_share, forward, step, enter = Prefetch.__next__, Encoder.forward, Engine.step, RunLog.enter

        def slow_share(shares: Prefetch) -> Any:
            if threading.current_thread() is threading.main_thread():  # not the thread that reads ahead
                self.now += 0.3 if (self.phase, self.rank) == ("data", 1) else 1e-4
            return next_share(shares)

        def slow_forward(encoder: Encoder, batch: Any, *rows: Any) -> Any:
            slow = (self.phase, self.rank) == ("rank", 1)
            self.now += batch.tokens * (2e-3 if slow else 1e-3)
            if self.phase == "step" and self.step == SLOW_STEP - 1:
                self.now += 1.0
            return forward(encoder, batch, *rows)

        def slow_step(engine: Engine, **settings: Any) -> bool:
            self.now += 0.1
            self.step += 1
            return step(engine, **settings)

        def slow_enter(run_log: RunLog, plan: Any, position: Any) -> None:
            self.phase, self.step = plan.phase.name, 0
            enter(run_log, plan, position)

        patch.setattr(rank_timing, "clock", lambda: self.now)
        patch.setattr(Prefetch, "__next__", slow_share)
        patch.setattr(Encoder, "forward", slow_forward)
        patch.setattr(Engine, "step", slow_step)
        patch.setattr(RunLog, "enter", slow_enter)


def refusals(world: World) -> list[str]:
    """What this rank does where none, the last and all ranks refuse."""

    def check(who: range) -> int:
        if world.rank in who:
            raise UserError("no such file", where=f"rank {world.rank}")
        return 7

    found = []
    for who in (range(0), range(1, 2), range(2)):
        try:
            found.append(str(raise_on_all_ranks(world, lambda who=who: check(who))))
        except UserError as error:
            found.append(str(error))
        except SystemExit as error:
            found.append(f"exit {error.code}")
    return found


def trained(recipe: str, settings: list[str]) -> dict[str, Any]:
    world = World.from_environment().start()
    refused = refusals(world)
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        Counter(world.rank, patch)
        config = load_config(recipe, settings)
        train(config, Console(file=out, width=300), "maskmill train", Watchdog(config.run))
    return {"refused": refused, "said": out.getvalue()}


@pytest.mark.multirank
def test_causes_are_told_apart_in_a_run(tiny: list[str], tmp_path: Path) -> None:
    names = "".join(f"  - {{name: {name}, train: {{steps: {STEPS}}}}}\n" for name in PHASES)
    (tmp_path / "recipe.yaml").write_text(f"extends: demo\nphases:\n{names}")
    drop = ("train.steps", "train.log_every", "train.checkpoint_every")
    settings = [s for s in tiny if not s.startswith(drop)] + [f"run.dir={tmp_path}/run", "run.ranks=2"]
    settings += [f"train.log_every={STEPS}", f"train.checkpoint_every={STEPS}", "train.micro_batch=32"]
    results = run(trained, 2, str(tmp_path / "recipe.yaml"), settings)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    found = {line["phase"]: line.get("slowdowns", []) for line in lines if line["kind"] == "train"}
    assert list(found) == list(PHASES)
    assert found["calm"] == found["calm_again"] == []
    assert [len(found[name]) for name in ("data", "rank", "step")] == [1, 1, 1], found
    assert found["data"][0].startswith(
        tuple(f"waiting for data: rank 1, and not the others, {ms}" for ms in (29, 30))
    )
    assert found["rank"][0].startswith("rank 1 is 2.0x slower than the median: ")
    step = 3 * STEPS + SLOW_STEP
    assert found["step"][0].startswith(f"an outlier: step {step} took ")
    assert "computing forward passes" in found["step"][0]
    said = results[0]["said"]
    assert all(found[name][0] in said for name in ("data", "rank", "step"))
    assert "2 ranks on 1 machine (cpu), 1 threads each; all-reduce of 4 MiB in" in said
    assert [result["refused"] for result in results] == [
        ["7", "rank 1: no such file (on rank 1 of 2)", "rank 0: no such file"],
        ["7", "exit 2", "exit 2"],
    ]


def test_a_rank_alone_asks_nobody() -> None:
    measured = rank_timing.Pace(torch.device("cpu"))
    measured.lap(1, 0.0)
    assert measured.read(World()) == ({}, []), "the first step warms up"
    for step in range(2, 8):
        measured.start()
        with measured.forward(10):
            pass
        measured.lap(step, 0.0)
    names = {"step_ms", "slowest_step_ms", "forward_ms", "step_ms_by_rank", "forward_ms_by_rank"}
    assert measured.read(World())[0].keys() == names
    assert measured.read(World()) == ({}, [])
