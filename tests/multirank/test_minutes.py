"""A run with a budget of time, on two ranks whose clocks the test makes irregular."""

import json
import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from attempts import Attempt, run_attempts

from pretrain.checkpoint.store import open_checkpoint
from pretrain.config.settings import ScheduleSettings
from pretrain.optim.schedule import Progress, learning_rate
from tests.run_ends import assert_same_weights, final

pytestmark = [pytest.mark.slow, pytest.mark.multirank]

SECONDS = 60.0
BUDGET = [
    "train.minutes=1",
    "train.log_every=3",
    "train.eval_every=5",
    "train.checkpoint_every=5",
    "checkpoint.keep=99",
]
LINEAR = ScheduleSettings("linear", 0.25)


def irregular(seed: int, rates: Path, before: Callable[[], None] | None = None) -> Callable[[], None]:
    """Give the first rank a clock whose hand jumps at each look, some 4 seconds a step, and the other one a clock that
    must not be looked at; and write down the rates of each rank."""
    return partial(_irregular, seed, rates, before)


def _irregular(seed: int, rates: Path, before: Callable[[], None] | None) -> None:
    import os

    from pretrain import train
    from pretrain.optim import schedule
    from pretrain.run import time_budget

    rank, draw, hand = int(os.environ["RANK"]), random.Random(seed), [1000.0 * seed]
    if before is not None and rank == 0:
        before()

    def looked_at() -> float:
        assert rank == 0, "the clock of another rank counts"
        hand[0] += draw.uniform(0.5, 1.5)
        return hand[0]

    def noted(*arguments: Any) -> float:
        rate = schedule.learning_rate(*arguments)
        with rates.with_name(f"{rates.name}-{rank}").open("a") as file:
            file.write(f"{rate!r}\n")
        return rate

    time_budget.clock, train.learning_rate = looked_at, noted


def killed_after(run: Path, step: int) -> Callable[[], None]:
    """What a kill behind the checkpoint of `step` leaves: later checkpoints are missing, lines of later steps are
    there."""
    return partial(_killed_after, run, step)


def _killed_after(run: Path, step: int) -> None:
    for folder in (run / "checkpoints").glob("step-*"):
        if int(folder.name.removeprefix("step-")) > step:
            shutil.rmtree(folder)
    summary = json.loads((run / "summary.json").read_text())
    del summary["sha256"]
    (run / "summary.json").write_text(json.dumps(summary | {"status": "running"}))


@pytest.fixture(scope="module")
def runs(tiny: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The folder of the runs, and what each attempt printed."""
    folder = tmp_path_factory.mktemp("budget")
    common = [
        s for s in tiny if not s.startswith(("train.steps", "train.log_every", "train.checkpoint_every"))
    ]
    common += [*BUDGET, "schedule.name=linear", "schedule.warmup=0.25", "encoder.dropout=0.1", "zero.stage=1"]

    def attempt(name: str, seed: int, *settings: str, before: Callable[[], None] | None = None) -> Attempt:
        rates = folder / f"rates-{name}-{seed}"
        return Attempt(
            2, [*common, f"run.dir={folder / name}", *settings], before=irregular(seed, rates, before)
        )

    replay = f"train.replay={folder / 'first'}"
    mixed = "phases=[{name: a, train: {minutes: 0.3}}, {name: b, train: {steps: 3}}, {name: c, train: {minutes: 0.2}}]"
    said = run_attempts(
        [
            attempt("first", 1),
            attempt("again", 2),
            attempt("resumed", 3, "run.stop_after=8"),
            attempt("resumed", 4, before=killed_after(folder / "resumed", 5)),
            attempt("replayed", 5, replay, "run.stop_after=4"),
            attempt("replayed", 6, replay),
            attempt("phases", 7, mixed, "run.stop_after=2"),
            attempt("phases", 8, mixed),
            attempt("phases-replayed", 9, mixed, f"train.replay={folder / 'phases'}", "run.stop_after=7"),
            attempt("phases-replayed", 10, mixed, f"train.replay={folder / 'phases'}"),
        ]
    )
    return folder, [one.output for one in said]


def train_lines(run: Path) -> list[dict]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == "train"]


def test_all_ranks_use_the_share_of_the_first(runs: tuple[Path, list[str]]) -> None:
    folder, _ = runs
    rates, others = ((folder / f"rates-first-1-{rank}").read_text().split() for rank in (0, 1))
    assert rates == others
    shares = [share for line in train_lines(folder / "first") for share in line["budget_shares"]]
    assert [repr(learning_rate(Progress(s, 1.0, in_updates=False), 1e-2, LINEAR)) for s in shares] == rates
    assert shares == sorted(shares)
    assert 10 < len(shares) < 25
    assert float(rates[-1]) < 0.2 * 1e-2 < max(map(float, rates))


def test_it_ends_at_the_budget_with_line_evaluation_and_checkpoint(runs: tuple[Path, list[str]]) -> None:
    folder, said = runs
    run = folder / "first"
    state, summary = final(run).state, json.loads((run / "summary.json").read_text())
    position = state["position"]
    assert position["spent"]
    assert SECONDS - 6 < position["elapsed"] < SECONDS + 6
    assert (summary["status"], summary["steps"], summary["step"]) == (
        "finished",
        final(run).step,
        final(run).step,
    )
    assert summary["budget_share"] == train_lines(run)[-1]["budget_share"] == 1.0
    assert train_lines(run)[-1]["step"] == final(run).step
    lines = list(map(json.loads, (run / "metrics.jsonl").read_text().splitlines()))
    evaluated = [line["step"] for line in lines if line["kind"] == "eval"]
    assert evaluated == [0, *range(5, final(run).step, 5), final(run).step]
    assert state["held_out_loss"] == lines[-1]["held_out_loss"], "the last checkpoint has the last evaluation"
    assert "not bit-equal" in said[0]
    assert f"step 3 ({train_lines(run)[0]['budget_share']:.1%} of 1 min)" in said[0]


def test_a_killed_run_continues_from_its_elapsed_time(runs: tuple[Path, list[str]]) -> None:
    folder, said = runs
    then, now = final(folder / "resumed").state["position"], final(folder / "first").state["position"]
    middle = open_checkpoint(folder / "resumed" / "checkpoints" / "step-00000005").state["position"]
    assert 12 < middle["elapsed"] < 28
    assert f"resuming from step 5 ({middle['elapsed'] / 60:.2f} of 1 minutes used" in said[3]
    assert SECONDS - 6 < then["elapsed"] < SECONDS + 6
    assert abs(then["step"] - now["step"]) < 6, "not a budget of its own for each attempt"
    lines = train_lines(folder / "resumed")
    assert sum(len(line["budget_shares"]) for line in lines) == then["step"], "each batch has its share once"
    used = middle["elapsed"] / SECONDS
    assert used < lines[2]["budget_shares"][0] < used + 3 / SECONDS, "the hand jumped twice since"


def test_another_clock_gives_other_weights_and_a_replay_the_same(runs: tuple[Path, list[str]]) -> None:
    folder, said = runs
    with pytest.raises(AssertionError):
        assert_same_weights(folder / "first", folder / "again")
    assert_same_weights(folder / "first", folder / "replayed")
    assert "bit-exact" in said[5]
    first, replayed = (train_lines(folder / name) for name in ("first", "replayed"))
    by_step = {line["step"]: line for line in replayed}
    assert all(line[key] == by_step[line["step"]][key] for line in first for key in ("lr", "grad_norm"))


def test_a_replay_of_several_phases_with_minutes_gives_the_same_weights(
    runs: tuple[Path, list[str]],
) -> None:
    folder, said = runs
    assert_same_weights(folder / "phases", folder / "phases-replayed")
    assert "bit-exact" in said[9]
    then, now = (
        json.loads((folder / name / "summary.json").read_text()) for name in ("phases", "phases-replayed")
    )
    assert [(one["first"], one["last"]) for one in then["phases"]] == [
        (one["first"], one["last"]) for one in now["phases"]
    ]
    starts = [one["last"] for one in now["phases"]]
    assert starts[0] < 7 < starts[2], "stopped behind the first phase"


def test_phases_have_minutes_or_steps(runs: tuple[Path, list[str]]) -> None:
    folder, said = runs
    summary = json.loads((folder / "phases" / "summary.json").read_text())
    a, b, c = summary["phases"]
    assert (a["first"], b["first"], c["first"]) == (0, a["last"], b["last"])
    assert b["last"] - b["first"] == 3
    assert a["last"] > 2
    assert summary["steps"] == c["last"] == final(folder / "phases").step
    assert "phase a: 0.3 minutes of training" in said[6]
    assert "phase b: 3 steps" in said[7]
    lines = {(line["phase"], line["step"]): line for line in train_lines(folder / "phases")}
    assert lines["b", b["last"]]["lr"] == learning_rate(Progress(2, 3), 1e-2, LINEAR)
    assert "budget_share" not in lines["b", b["last"]]
    assert lines["c", c["last"]]["budget_share"] == 1.0
    state = final(folder / "phases").state["position"]
    assert (state["phase"], state["phase_step"]) == (2, c["first"])
    assert 12 - 6 < state["elapsed"] < 12 + 6
