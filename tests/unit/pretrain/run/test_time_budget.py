"""The share of a budget of time, by a clock that the tests move."""

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from data_pipeline.errors import UserError
from pretrain.run import time_budget
from pretrain.run.time_budget import (
    BudgetForecast,
    ShareLog,
    TimeBudget,
    logged_shares,
    phases_in,
    seconds_left,
    shares_digest,
    shares_of,
)


class Hand:
    """A clock's hand."""

    at = 100.0

    def turn(self, seconds: float) -> None:
        self.at += seconds


@pytest.fixture
def hand(monkeypatch: pytest.MonkeyPatch) -> Hand:
    hand = Hand()
    monkeypatch.setattr(time_budget, "clock", lambda: hand.at)
    return hand


def steps(budget: TimeBudget, hand: Hand, seconds: list[float]) -> Iterator[tuple[BudgetForecast, float]]:
    """Train steps of so many seconds as the loop does; yields what was announced of each, and the elapsed seconds
    after it."""
    announced: list[BudgetForecast] = []
    for taken in seconds:
        budget.start()
        announced += [budget.forecast() for _ in range(1 if announced else 2)]  # one step ahead
        hand.turn(taken)
        budget.stop()
        yield announced.pop(0), budget.elapsed


def test_only_steps_count(hand: Hand) -> None:
    budget = TimeBudget(1.0)
    hand.turn(500)  # starting, compiling
    for _ in range(3):
        budget.start()
        hand.turn(2)
        budget.stop()
        hand.turn(50)  # an evaluation, a checkpoint
    assert budget.elapsed == 6
    budget.start()
    hand.turn(1)  # a batch that is skipped: its time is spent
    budget.start()
    hand.turn(1)
    assert budget.elapsed == 8


def test_a_share_is_that_at_which_the_update_begins(hand: Hand) -> None:
    found = [ahead for ahead, _ in steps(TimeBudget(1.0), hand, [6.0] * 10)]
    # the length of a step is unknown when the second is announced; from then on it is expected
    assert [ahead.share for ahead in found] == pytest.approx([0, 0, *(n / 10 for n in range(2, 10))])
    assert [ahead.last for ahead in found] == [False] * 9 + [True]


def test_a_slow_step_neither_ends_the_run_nor_turns_the_schedule_back(hand: Hand) -> None:
    found = [ahead for ahead, _ in steps(TimeBudget(1.0), hand, [2.0, 2.0, 25.0, 2.0, 2.0, 2.0, 2.0])]
    assert not any(ahead.last for ahead in found)
    shares = [ahead.share for ahead in found]
    assert shares == sorted(shares)


def up_to_the_last(found: Iterator[tuple[BudgetForecast, float]]) -> Iterator[tuple[BudgetForecast, float]]:
    for ahead, elapsed in found:
        yield ahead, elapsed
        if ahead.last:
            return


@pytest.mark.parametrize("seconds", [0.7, 1.0, 3.3, 11.0])
def test_it_ends_within_a_step_of_the_budget(hand: Hand, seconds: float) -> None:
    budget = TimeBudget(1.0)
    *_, (ahead, elapsed) = up_to_the_last(steps(budget, hand, [seconds] * 1000))
    assert 60 - seconds < elapsed < 60 + seconds
    assert ahead.share >= 1 - 2 * seconds / 60
    assert budget.forecast().last, "if that update is skipped, the next one is the last"


def test_it_continues_from_what_is_used(hand: Hand) -> None:
    budget = TimeBudget(1.0, elapsed=45.0)
    assert budget.forecast() == BudgetForecast(0.75, False)
    assert TimeBudget(1.0, elapsed=61.0).forecast() == BudgetForecast(1.0, True)


def test_other_ranks_and_runs_of_steps_do_not_look_at_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_budget, "clock", lambda: math.nan)
    for budget in (TimeBudget(), TimeBudget(1.0, measures=False)):
        budget.start()
        assert budget.forecast() == BudgetForecast(0.0, False)
        budget.stop()


def test_a_replay_gives_the_logged_shares(hand: Hand) -> None:
    budget = TimeBudget(1.0, replay=[0.0, 0.25, None, 0.5], batch=1)
    hand.turn(1000)
    found = [budget.forecast() for _ in range(4)]
    assert found == [
        BudgetForecast(0.25, False),
        BudgetForecast(0.25, False),
        BudgetForecast(0.5, True),
        BudgetForecast(1.0, True),
    ]


def write(folder: Path, *lines: dict) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "metrics.jsonl").write_text(
        "".join(json.dumps({"kind": "train"} | line) + "\n" for line in lines)
    )
    return folder


def test_shares_are_read_back_by_batch(tmp_path: Path) -> None:
    log = ShareLog(batch=2)
    for batch, share in ((2, 0.1), (4, 1 / 3), (5, 0.9)):
        log.add(batch, share)
    before = {"step": 2, "phase": "a", "batch": 2}
    first = {"step": 3, "phase": "b", "batch": 3, "budget_shares": log.take(3), "budget_share": 0.2}
    second = {"step": 5, "phase": "b", "batch": 6, "budget_shares": log.take(6), "budget_share": 1.0}
    of_steps = {"step": 9, "phase": "c", "batch": 12}
    run = write(tmp_path / "run", before, first, {"kind": "eval", "step": 3}, second, of_steps)
    assert logged_shares(str(run)) == {"b": [0.1, None, 1 / 3, 0.9]}
    assert logged_shares(str(run / "metrics.jsonl")) == {"b": [0.1, None, 1 / 3, 0.9]}
    assert shares_of(str(run), "b") == [0.1, None, 1 / 3, 0.9]
    for other, words in (("c", "phase c"), ("", "a run without phases")):
        with pytest.raises(UserError, match=f"no logged shares of {words}") as refused:
            shares_digest(str(run), other)
        assert refused.value.expected == "those of phase b"
    assert shares_digest("", "b") == ""
    digest = shares_digest(str(run), "b")
    assert len(digest) == 64
    write(run, before, first, second | {"budget_shares": [0.5, 0.8, 0.9]})
    assert shares_digest(str(run), "b") != digest, "a process may start several runs"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([{"step": 1, "batch": 1, "loss": 2.0}], "has no logged shares of a time budget"),
        ([{"step": 1, "batch": 1, "budget_shares": [0.0], "budget_share": 0.4}], "is not finished"),
    ],
)
def test_a_run_that_cannot_be_replayed_is_refused(tmp_path: Path, lines: list[dict], words: str) -> None:
    with pytest.raises(UserError, match=words):
        logged_shares(str(write(tmp_path / "run", *lines)))


LOG = [
    {"step": 4, "phase": "a", "batch": 4},
    {"step": 6, "phase": "b", "batch": 6, "budget_shares": [0.0, 0.1], "budget_share": 0.2},
    {"step": 8, "phase": "b", "batch": 9, "budget_shares": [0.2, None, 0.4], "budget_share": 0.6},
    {"step": 10, "phase": "b", "batch": 11, "budget_shares": [0.6, 0.8], "budget_share": 1.0},
]
"""A phase of four steps, then one of six updates in a budget of time, of which one batch was skipped."""


def test_a_log_that_was_cut_is_not_replayed_with_the_shares_of_other_batches(tmp_path: Path) -> None:
    assert shares_of(str(write(tmp_path / "run", *LOG)), "b") == [0.0, 0.1, 0.2, None, 0.4, 0.6, 0.8]
    without_shares = [{key: value for key, value in LOG[2].items() if key != "budget_shares"}]
    shorter = [LOG[2] | {"budget_shares": [None, 0.4]}]
    for number, kept in ((1, []), (2, []), (2, without_shares), (2, shorter)):
        cut = [*LOG[:number], *kept, *LOG[number + 1 :]]
        with pytest.raises(UserError, match=r"lacks shares of the updates from step \d+ to \d+"):
            logged_shares(str(write(tmp_path / "run", *cut)))


def test_batches_that_were_rolled_back_keep_their_places(tmp_path: Path) -> None:
    """Their lines are cut, and steps are counted again from the checkpoint."""
    from_the_start = [
        LOG[0],
        LOG[1] | {"batch": 9},
        *(line | {"batch": line["batch"] + 3} for line in LOG[2:]),
    ]
    found = shares_of(str(write(tmp_path / "run", *from_the_start)), "b")
    assert found == [None, None, None, 0.0, 0.1, 0.2, None, 0.4, 0.6, 0.8]
    not_logged_yet = [*LOG[:2], LOG[2] | {"batch": 11, "budget_shares": [0.2, None, 0.3, None, 0.4]}]
    found = shares_of(str(write(tmp_path / "run", *not_logged_yet, LOG[3] | {"batch": 13})), "b")
    assert found == [0.0, 0.1, 0.2, None, 0.3, None, 0.4, 0.6, 0.8]


def test_the_time_left_of_a_budget_is_what_is_not_used() -> None:
    run = phases_in({"minutes": 10.0})
    assert seconds_left(20, 2.0, run, newest={"budget_share": 0.25}) == 450
    assert seconds_left(20, 2.0, phases_in({"minutes": 10.0, "steps": 20})) == 0.0, "it has ended"
    phases = [
        {"name": "a", "first": 0, "last": None, "minutes": 10, "global_batch": 8, "sequence_length": 64},
        {"name": "b", "first": None, "last": None, "minutes": 5, "global_batch": 8, "sequence_length": 128},
        {"name": "c", "first": None, "last": None, "steps": 50, "global_batch": 8, "sequence_length": 128},
    ]
    newest = {"phase": "a", "budget_share": 0.5}
    assert seconds_left(20, 2.0, phases, newest=newest) == 300 + 300 + 50 * 2.0 * 2
    phases[0]["last"] = phases[1]["first"] = 40
    assert seconds_left(45, 4.0, phases, measured=41, newest=newest) == 300 + 50 * 4.0, (
        "the new phase has begun"
    )
    phases[1]["last"] = phases[2]["first"] = 60
    assert seconds_left(70, 4.0, phases, newest=newest) == 40 * 4.0
