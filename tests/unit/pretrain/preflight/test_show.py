"""How far a budget of minutes comes on a cluster, as `maskmill plan` says it."""

import io
import json
import math
from dataclasses import replace

import pytest
from rich.console import Console

from launch.recipe import load_config
from pretrain.config.phases import phases_of
from pretrain.config.settings import ScheduleSettings
from pretrain.optim.schedule import Progress, learning_rate
from pretrain.preflight.forecast import Forecast, forecast, forecast_phases
from pretrain.preflight.gpus import GPUS
from pretrain.preflight.show import reached_in, show_phases
from pretrain.preflight.step_time import Cluster
from tests.command_line import Maskmill

H100 = Cluster(1, 1, GPUS["h100"])
TEN = ["train.minutes=10", "train.global_batch=64", "optim.lr=1e-3", "schedule.name=linear"]


def of_ten_minutes(*settings: str) -> Forecast:
    return forecast(phases_of(load_config("bert_tiny", [*TEN, "schedule.warmup=0.25", *settings]))[0], H100)


def test_as_many_steps_as_fill_the_minutes() -> None:
    found = of_ten_minutes()
    assert found.steps == math.ceil(600 / found.step.total)
    assert 600 <= found.seconds < 600 + found.step.total
    assert found.tokens == found.steps * 64 * found.text.length
    assert abs(of_ten_minutes("train.minutes=20").steps - 2 * found.steps) <= 1


def test_smaller_batches_of_a_ramp_are_more_steps() -> None:
    whole, found = of_ten_minutes(), of_ten_minutes("train.batch_ramp_from=32", "train.batch_ramp=1000")
    assert found.step == whole.step
    assert 600 <= found.seconds < 600 + found.step.total
    assert found.steps - whole.steps == pytest.approx(1000 / 2, abs=1), "a thousand steps of half a batch"


def test_rates_follow_the_share_of_the_minutes() -> None:
    found = of_ten_minutes()
    updates = [round(i * (found.steps - 1) / 63) for i in range(64)]
    shares = [Progress(step / found.steps, 1.0, in_updates=False) for step in updates]
    assert found.rates == tuple(
        learning_rate(share, 1e-3, ScheduleSettings("linear", 0.25)) for share in shares
    )
    assert max(found.rates) == pytest.approx(1e-3, rel=0.05)
    assert found.rates[0] == 0 < found.rates[-1] < 1e-5


def test_what_they_reach_in_words() -> None:
    found = replace(of_ten_minutes(), steps=12_345, tokens=2.5e9, epochs=math.nan, calibrated=True)
    assert reached_in(7.5, found) == (
        "train.minutes=7.5 reaches about 12,345 steps, 2.5 billion tokens: as calibrated on this GPU; the schedule "
        "follows the clock, whatever it reaches"
    )
    doubted = reached_in(7.5, replace(found, epochs=1.256, calibrated=False))
    assert "2.5 billion tokens (1.26 epochs): not calibrated on this GPU, so an estimate;" in doubted


def test_only_phases_of_minutes_say_so_and_all_are_added_up() -> None:
    phased = "phases=[{name: a, train: {minutes: 10}}, {name: b, train: {steps: 50}}]"
    phases = forecast_phases(load_config("bert_tiny", [phased, *TEN[1:]]), H100)
    (_, timed), (_, counted) = phases
    text = io.StringIO()
    show_phases(phases, 1, Console(file=text, width=200, highlight=False))
    said = text.getvalue()
    assert said.count("reaches about") == 1
    assert f"train.minutes=10 reaches about {timed.steps:,} steps" in said
    assert (
        said.index("10 minutes of training") < said.index("reaches about") < said.index("phase b: 50 steps")
    )
    assert (counted.steps, counted.seconds) == (50, pytest.approx(50 * counted.step.total))
    assert f"{timed.steps + 50:,} steps" in said[said.index("the whole run") :]


def test_the_command_says_it(maskmill: Maskmill) -> None:
    found = of_ten_minutes()
    command = ["plan", "bert_tiny", *TEN, "schedule.warmup=0.25", "--gpu", "h100", "--gpus-per-node", "1"]
    said = " ".join(maskmill(*command).stdout.split())
    assert reached_in(10.0, found) in said
    assert json.loads(maskmill(*command, "--json").stdout)["steps"] == found.steps
