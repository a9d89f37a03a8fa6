"""What the plan has the host start, beside what a pretended GPU counted and the time that hosts of GPUs took."""

import re

import pytest
import torch

from launch.recipe import load_config
from pretrain.config.phases import phases_of
from pretrain.config.settings import RunConfig
from pretrain.distributed.launch_env import resolve_precision
from pretrain.preflight import step_time
from pretrain.preflight.forecast import forecast, launches_of_pass
from pretrain.preflight.gpus import GPUS
from pretrain.preflight.memory import meta_model, pass_costs
from pretrain.preflight.step_time import (
    LAUNCH_SECONDS,
    Cluster,
    gradient_operations,
    peak_flops,
    peak_source,
    update_operations,
)
from tests.command_line import ROOT, TINY

H100 = GPUS["h100"]
PAGE = (ROOT / "docs/evidence/plan_calibration.md").read_text("utf-8")
TABLE = re.search(r"^\| run \| launches.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
COUNTED = [
    (row[0], int(row[1]) + int(row[2]), int(row[3].replace(",", "")) + int(row[4]))
    for row in re.findall(
        r"^\| (.*) \| (\d+), (\d+), \d+ \| ([\d,]+?), (\d+), \d+ \|$", TABLE[1] if TABLE else "", re.MULTILINE
    )
]
"""Run, operations of a micro-batch, and of the rest of a step, of the page's table, counted by tests/fake_gpu."""
BEYOND_THE_PLAN = ("activation_checkpointing", "recomputed", "dropout", "not deterministic")
"""What the plan follows in no run, by the page too."""
FOLLOWED = [
    row
    for row in COUNTED
    if ("AdamW" not in row[0] and "Muon" not in row[0]) or row[0].startswith("bf16, ZeRO-2, AdamW, offloaded")
    if not any(words in row[0] for words in BEYOND_THE_PLAN)
]
"""Of optimizers LAMB alone, and of offloading that at stage 2."""


def settings_of(run: str) -> list[str]:
    """The settings of a run of the table, in words there; the table begins with the default."""
    precision = next((name for name in ("bf16", "fp16", "fp32") if name in run), "bf16")
    stage = next(iter(re.findall(r"ZeRO-(\d)", run)), "1")
    compiled = "not compiled" not in run and "train.compile=off" not in run
    offload = ["zero.offload=cpu"] if "offloaded" in run else []
    kept = [setting for setting in TINY if not setting.startswith("optim.name")]
    optimizer = "adamw" if "AdamW" in run else "lamb"
    return [
        *kept, *offload, f"optim.name={optimizer}", f"train.precision={precision}", f"zero.stage={stage}",
        f"train.compile={'on' if compiled else 'off'}",
    ]  # fmt: skip


def counts_of(config: RunConfig, micro_batches: int = 1, vocabulary: int = 30_522) -> tuple[float, int]:
    """Operations that the plan expects of a micro-batch, gradients included, and of an update."""
    precision, stage = resolve_precision(config, "cuda"), config.zero.stage
    offloaded = config.zero.offload == "cpu"
    tensors = sum(1 for _ in meta_model(config, vocabulary).parameters())
    passed = launches_of_pass(
        config, precision, H100, pass_costs(meta_model(config, vocabulary), config, precision)[-1]
    )
    gradients = gradient_operations(stage, precision, tensors, micro_batches, offloaded)
    return passed + gradients / micro_batches, update_operations(stage, precision, tensors, offloaded)


def test_the_whole_table_is_found() -> None:
    assert TABLE is not None
    assert len(COUNTED) == len(TABLE[1].splitlines())
    assert COUNTED[0][1:] == (334, 77)
    assert len(FOLLOWED) >= 10


@pytest.mark.parametrize(("run", "micro_batch", "rest"), FOLLOWED)
def test_the_plan_counts_what_a_pretended_gpu_counted(run: str, micro_batch: int, rest: int) -> None:
    found = counts_of(
        phases_of(load_config("demo", settings_of(run)))[0].config, micro_batches=3, vocabulary=300
    )
    assert found == (pytest.approx(micro_batch, rel=0.04), pytest.approx(rest, rel=0.08))


@pytest.mark.parametrize(
    ("recipe", "forward", "backward"),
    [("bert_large", 21, 45), ("bert_large", 16, 37), ("bert_base", 9, 25)],
)
def test_the_host_was_no_quicker_than_the_plan_says(recipe: str, forward: int, backward: int) -> None:
    """On an H100, an H200 and the H200 again (docs/evidence/benchmarks.md); the plan counts with the least of them."""
    operations, _ = counts_of(phases_of(load_config(recipe, []))[0].config)
    measured = (forward + backward) / 1e3
    assert 0.75 * measured < operations * LAUNCH_SECONDS < 1.01 * measured


def test_a_whole_step_that_was_measured_is_met() -> None:
    """BERT-large at 128 tokens took 323.7 ms on an H100 and 304.3 on an H200: its arithmetic, not the host, decides."""
    row = ["phases.phase1.train.global_batch=512", "phases.phase1.train.micro_batch=128"]
    phase = phases_of(load_config("bert_large", row))[0]
    for gpu, measured in (("h100", 0.3237), ("h200", 0.3043)):
        step = forecast(phase, Cluster(1, 1, GPUS[gpu])).step
        assert step.launching == 0
        assert step.total == pytest.approx(measured, rel=0.015)


def test_bert_mini_waits_for_the_host_as_it_did() -> None:
    """59 ms on an H200 shared with other runs, in two micro-batches; the arithmetic alone is a fortieth of that."""
    row = ["data.sequence_length=64", "data.masked_lm_prob=0.25", "data.max_predictions=0", "optim.name=lamb"]
    found = forecast(
        phases_of(load_config("bert_mini", [*row, "train.global_batch=256", "train.micro_batch=128"]))[0],
        Cluster(1, 1, GPUS["h200"]),
    )
    assert found.micro_batches == 2
    assert 0.5 * 0.059 < found.step.total < 0.059


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
