"""What a forecast knows of GPUs, the floors of its times, its cost, and how it reads at 80 columns."""

import io
import json
import re

import pytest
from rich.console import Console

from data_pipeline.errors import UserError
from launch.recipe import load_config
from pretrain.config.phases import phases_of
from pretrain.preflight import gpus as hardware
from pretrain.preflight import step_time as timing
from pretrain.preflight.forecast import DEFAULT_UTILISATION, Forecast, forecast, forecast_phases
from pretrain.preflight.gpus import GPUS, NVLINK, PCIE, gpu_named
from pretrain.preflight.show import show, show_phases
from pretrain.preflight.step_time import (
    Cluster,
    StepWork,
    collectives_per_step,
    ring_latency,
    small_all_reduce,
    step_time,
)
from tests.command_line import ROOT, Maskmill


def tiny_on(gpu: str, *overrides: str, nodes: int = 1, gpus: int = 1) -> Forecast:
    return forecast(phases_of(load_config("bert_tiny", list(overrides)))[0], Cluster(nodes, gpus, GPUS[gpu]))


def printed(found: Forecast, price: float = 0.0, width: int = 80) -> str:
    text = io.StringIO()
    show(found, 1, Console(file=text, width=width, highlight=False), price)
    return text.getvalue()


@pytest.mark.parametrize(
    ("name", "key"),
    [
        *((key, key) for key in GPUS),
        *((key.upper(), key) for key in GPUS),
        ("RTX 4090", "rtx4090"),
        ("4090", "rtx4090"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("A100-80GB", "a100-80"),
        ("a100_40gb", "a100"),
        ("Nvidia H100", "h100"),
    ],
)
def test_a_gpu_is_known_by_its_name_in_any_case(name: str, key: str) -> None:
    assert gpu_named(name) == GPUS[key]


def test_an_unknown_gpu_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(UserError, match=r"unknown GPU 'H1000'.*expected v100, .*rtx4090"):
        gpu_named("H1000")


@pytest.mark.parametrize(
    ("key", "tflops", "gigabytes", "bandwidth", "link"),
    [
        ("l40s", 362, 48, 864, PCIE),
        ("a10", 125, 24, 600, PCIE),
        ("rtx4090", 165.2, 24, 1008, PCIE),
        ("b200", 2250, 180, 8000, NVLINK),
        ("h100", 989, 80, 3350, NVLINK),
    ],
)
def test_figures_are_those_of_the_data_sheets(
    key: str, tflops: float, gigabytes: float, bandwidth: float, link: str
) -> None:
    gpu = GPUS[key]
    assert gpu.half_flops == pytest.approx(tflops * 1e12)
    assert gpu.memory == gigabytes * 1e9
    assert gpu.memory_bandwidth == bandwidth * 1e9
    assert gpu.link == link
    assert gpu.has_bf16
    assert gpu_named(key, between_gbit=8.0).between == 1e9


def test_a_small_model_waits_for_the_host_on_any_gpu() -> None:
    found = tiny_on("h100", "train.global_batch=32")
    assert found.step.arithmetic + found.step.launching == pytest.approx(timing.host_seconds(2, 1))
    assert found.step.arithmetic < 0.1 * found.step.launching
    assert tiny_on("b200", "train.global_batch=32").step.total > 0.95 * found.step.total


def test_a_large_batch_does_not_wait_for_the_host() -> None:
    assert tiny_on("a10", "train.global_batch=8192", "train.micro_batch=8192").step.launching == 0


def test_latency_of_collectives_is_nccls() -> None:
    assert ring_latency(Cluster(1, 8, GPUS["h100"])) == pytest.approx(8.4e-6 + 7 * 3.4e-6)
    assert ring_latency(Cluster(2, 8, GPUS["h100"])) == pytest.approx(8.4e-6 + 14 * 3.4e-6 + 14e-6)
    assert ring_latency(Cluster(1, 8, GPUS["l40s"])) == pytest.approx(8.4e-6 + 7 * 5.7e-6)
    assert small_all_reduce(Cluster(4, 8, GPUS["h100"])) == pytest.approx(
        6.8e-6 + 2 * (7 * 0.6e-6 + 2 * 5e-6)
    )
    assert [collectives_per_step(stage, 110_000_000, 4, 12) for stage in range(4)] == [6, 6, 15, 4 * (3 + 24)]
    cluster = Cluster(16, 8, GPUS["h100"])
    assert step_time(StepWork(0, 0, 1.0, collectives=2), cluster).communication > 2 * ring_latency(cluster)


def test_it_says_that_it_is_not_calibrated_until_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(hardware.CALIBRATED, "H100 80 GB")
    found = tiny_on("h100")
    assert (found.calibrated, found.utilisation) == (False, DEFAULT_UTILISATION)
    assert "not calibrated on this GPU: no run on H100 80 GB has been measured" in " ".join(
        printed(found).split()
    )
    monkeypatch.setitem(hardware.CALIBRATED, "H100 80 GB", 0.31)
    found = tiny_on("h100")
    assert (found.calibrated, found.utilisation) == (True, 0.31)
    assert "not calibrated" not in printed(found)
    assert "calibrated by a run measured on H100 80 GB" in printed(found)
    stated = forecast(phases_of(load_config("bert_tiny", []))[0], Cluster(1, 1, GPUS["h100"]), 0.2)
    assert stated.utilisation == 0.2


def test_cost_is_gpu_hours_times_the_price() -> None:
    found = tiny_on("rtx4090", gpus=4)
    assert f"{4 * found.seconds / 3600 * 200:,.2f} at 200 per GPU-hour" in printed(found, price=200)
    assert "--price-per-hour says it" in printed(found)
    phases = forecast_phases(load_config("bert_large", []), Cluster(8, 8, GPUS["h100"]))
    text = io.StringIO()
    show_phases(phases, 1, Console(file=text, width=80, highlight=False), 2.5)
    hours = sum(found.seconds for _, found in phases) / 3600
    assert f"cost {64 * hours * 2.5:,.2f}" in " ".join(text.getvalue().split())


@pytest.mark.parametrize("gpu", ["h100", "rtx4090"])
def test_it_reads_at_80_columns(gpu: str) -> None:
    text = printed(tiny_on(gpu, "train.global_batch=2049", nodes=3, gpus=8), price=1234.5)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text  # nothing was cut off
    assert not [line for line in text.splitlines() if re.search(r"│\s*│\s*│", line)]  # nor wrapped in a cell


def test_the_command_takes_gpu_and_price(maskmill: Maskmill) -> None:
    said = maskmill("plan", "bert_tiny", "--gpu", "RTX 4090", "--price-per-hour", "0.5", "--json").stdout
    values = json.loads(said)
    assert values["gpu"] == "RTX 4090 24 GB"
    assert values["cost"] == pytest.approx(0.5 * values["gpu_hours"])
    assert values["calibrated"] is False
    assert all(key in maskmill("plan", "--help").stdout for key in GPUS)


def test_the_documented_figures_are_those_of_the_forecast() -> None:
    page = (ROOT / "docs/guides/hardware.md").read_text("utf-8")
    rows = re.findall(
        r"^\| `([a-z0-9-]+)` \| ([\d,.]+).*? \| ([\d,]+) \| ([\d,]+) \| \w+[ \d.]*, (\d+) \|",
        page,
        re.MULTILINE,
    )
    figures = {row[0]: [float(value.replace(",", "")) for value in row[1:]] for row in rows}
    assert figures == {
        key: pytest.approx([g.half_flops / 1e12, g.memory / 1e9, g.memory_bandwidth / 1e9, g.inside / 1e9])
        for key, g in GPUS.items()
    }


def test_the_readmes_status_names_each_gpu_that_is_calibrated() -> None:
    status = (ROOT / "README.md").read_text("utf-8").partition("**Status:**")[2].partition("\n\n")[0]
    assert status
    assert all(name.split()[0] in status for name in hardware.CALIBRATED)
