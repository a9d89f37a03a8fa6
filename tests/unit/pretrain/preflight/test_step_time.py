"""The seconds of a step beside those that were measured on GPUs, and the peak of a device."""

import re

import pytest
import torch

from launch.recipe import load_config
from pretrain.config.phases import phases_of
from pretrain.preflight import step_time
from pretrain.preflight.forecast import Forecast, forecast
from pretrain.preflight.gpus import GPUS
from pretrain.preflight.memory import meta_model
from pretrain.preflight.step_time import Cluster, host_seconds, layers_of, peak_flops, peak_source
from tests.command_line import ROOT

PAGE = (ROOT / "docs/evidence/plan_calibration.md").read_text("utf-8")
_, _, TIME = PAGE.partition("## Time\n")
MEASURED = {
    row[0]: (float(row[1].replace(",", "")), float(row[2].replace(",", "")))
    for row in re.findall(r"^\| ([^|]+) \| ([\d,.]+) \| ([\d,.]+)", TIME.partition("\n## ")[0], re.MULTILINE)
}
"""Of each row of the page: milliseconds that the plan says, and that were measured."""
LARGE = ["phases.phase1.train.global_batch=512", "phases.phase1.train.micro_batch=128"]
BASE = ["train.global_batch=1024", "train.micro_batch=256"]
MINI = [
    *("data.sequence_length=64", "data.masked_lm_prob=0.25", "data.max_predictions=0"),
    *("train.global_batch=256", "train.micro_batch=128"),
]
LONG = ["phases.long.train.global_batch=48", "phases.long.train.micro_batch=12"]
POINTS = [
    ("BERT-large, 4 x 128 x 128 tokens, third H100", "h100", "bert_large", LARGE, 0.98, 1.02),
    ("the same, H200", "h200", "bert_large", LARGE, 0.98, 1.02),
    ("BERT-base, 4 x 256 x 128 tokens, H200", "h200", "bert_base", BASE, 0.8, 1.0),
    ("`bert_mini`, 2 x 128 x 64 tokens, H200", "h200", "bert_mini", MINI, 0.6, 1.0),
    ("ModernBERT-base, 4 x 12 x 8,192 tokens, later H200s", "h200", "modernbert_base", LONG, 0.4, 1.0),
]
"""A row, its GPU, recipe and settings, and what the plan may be over what was measured."""


def planned(gpu: str, recipe: str, settings: list[str]) -> Forecast:
    phases = phases_of(load_config(recipe, settings))
    long = [phase for phase in phases if phase.name == "long"]
    return forecast([*long, *phases][0], Cluster(1, 1, GPUS[gpu]))


def test_every_row_of_the_page_is_a_point() -> None:
    assert list(MEASURED) == [row for row, *_ in POINTS]


@pytest.mark.parametrize(("row", "gpu", "recipe", "settings", "least", "most"), POINTS)
def test_the_plan_is_as_near_to_what_was_measured_as_the_page_says(
    row: str, gpu: str, recipe: str, settings: list[str], least: float, most: float
) -> None:
    found = 1e3 * planned(gpu, recipe, settings).step.total
    said, measured = MEASURED[row]
    assert f"{found:.1f}" == f"{said:.1f}"
    assert least < found / measured < most


def test_only_small_models_wait_for_the_host() -> None:
    assert planned("h200", "bert_large", LARGE).step.launching == 0
    mini = planned("h200", "bert_mini", MINI)
    assert mini.micro_batches == 2
    assert mini.step.arithmetic + mini.step.launching == host_seconds(4, 2) > 5 * mini.step.arithmetic


@pytest.mark.parametrize(("layers", "measured"), [(24, 53), (12, 34)])
def test_the_host_takes_what_it_took(layers: int, measured: int) -> None:
    """For forward and backward of a micro-batch on the H200 (docs/evidence/benchmarks.md)."""
    assert 1e3 * (host_seconds(layers, 2) - host_seconds(layers, 1)) == pytest.approx(measured, rel=0.01)


@pytest.mark.parametrize(
    ("recipe", "settings", "layers"),
    [("bert_base", [], 12), ("albert_base", [], 12), ("xlnet_tiny", [], 2), ("electra_tiny", [], 4)],
)
def test_the_layers_of_all_encoders_count(recipe: str, settings: list[str], layers: int) -> None:
    assert layers_of(meta_model(load_config(recipe, settings), 300)) == layers


# The peak of a device: stated, or measured on a CPU.


CPU = torch.device("cpu")


def test_what_is_stated_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "mm", lambda *_: pytest.fail("it is measured"))
    assert (peak_flops(CPU, 0.5), peak_source(CPU, 0.5)) == (5e11, "stated")


def test_a_cpu_has_the_rate_of_its_fastest_product(monkeypatch: pytest.MonkeyPatch) -> None:
    took, clock = iter([3.0, 2.0, 0.5, 1.0, 4.0]), [0.0]

    def product(a: torch.Tensor, b: torch.Tensor) -> None:
        assert a.shape == b.shape == (1024, 1024)
        clock[0] += next(took)

    monkeypatch.setattr(step_time.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(torch, "mm", product)
    assert (peak_flops(CPU, 0.0), peak_source(CPU, 0.0)) == (2 * 1024**3 / 0.5, "measured")
