"""Only steps use up train.minutes: the test turns the clock's hand in all else that a run does. One rank, this process.

The clock of several ranks: tests/multirank/test_minutes.py.
"""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pretrain import train
from pretrain.checkpoint.save import Saver
from pretrain.run import time_budget
from pretrain.run.metrics_log import read_metrics
from pretrain.training import feed
from pretrain.training.guard import Guard
from pretrain.training.validation import HeldOut
from tests.command_line import Maskmill
from tests.run_ends import final

# what DeepSpeed's imports give rise to in a process of pytest's
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

STEP, ELSE = 4.0, 1000.0
"""Seconds that a step takes, and each of the things that must not count."""
REFUSED, ROLLED_BACK_TO = 7, 5
"""The batch whose gradient is NaN, and the step of the checkpoint before it."""
OTHER = ("train.steps", "train.log_every", "train.eval_every", "train.checkpoint_every")
RUN = [
    "run.ranks=1",
    "train.minutes=1",
    "train.log_every=1",
    "train.eval_every=2",
    "train.checkpoint_every=5",
]


@pytest.fixture
def hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that the work turns: each part of it by the seconds that it is said to take."""
    at, batches, accepts = [0.0], count(), Guard.accepts

    def taking(seconds: float, work: Callable[..., Any]) -> Callable[..., Any]:
        def slow(*arguments: Any) -> Any:
            at[0] += seconds
            return work(*arguments)

        return slow

    def judged(guard: Guard) -> bool:
        return next(batches) != REFUSED and accepts(guard)

    monkeypatch.setattr(time_budget, "clock", lambda: at[0])
    monkeypatch.setattr(Guard, "accepts", judged)
    monkeypatch.setattr(train, "wants_compiling", lambda *_: True)
    monkeypatch.setattr(feed, "compile_model", taking(ELSE, lambda *_: 0.0))
    monkeypatch.setattr(train, "compute", taking(STEP, train.compute))
    for owner, name in (
        (train, "take_probe"),
        (train, "roll_back"),
        (HeldOut, "evaluate"),
        (Saver, "save"),
        (Saver, "wait"),
    ):
        monkeypatch.setattr(owner, name, taking(ELSE, getattr(owner, name)))


def test_only_steps_use_up_the_minutes(
    hand: None, here: None, tiny: list[str], maskmill: Maskmill, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    settings = [one for one in tiny if not one.startswith(OTHER)]
    maskmill("train", "demo", *settings, *RUN, "train.on_nan=rollback", f"run.dir={run}")
    end = final(run).state["position"]
    assert (end["elapsed"], end["batch"]) == (60.0, 60 / STEP)
    assert end["skipped"] == [*range(ROLLED_BACK_TO, REFUSED + 1)], "it was rolled back"
    used = {line["step"]: line["budget_shares"][-1] for line in read_metrics(run) if line["kind"] == "train"}
    before = [
        *range(ROLLED_BACK_TO),
        *range(REFUSED + 1, 15),
    ]  # batches whose time is used as each update begins
    assert [used[step] for step in range(2, end["step"] + 1)] == pytest.approx(
        [0.0, *(STEP * batches / 60 for batches in before[2:])]
    ), "the first two cannot know the length of a step"
