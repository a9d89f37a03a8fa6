"""The planner's model of time against published scaling, and of memory against what the engine allocates."""

import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from data_pipeline.errors import UserError
from data_pipeline.vocabulary.files import save_vocabulary
from launch.recipe import load_config
from pretrain.config.phases import phases_of
from pretrain.preflight import step_time as timing
from pretrain.preflight.forecast import Forecast, forecast, forecast_phases, text_of
from pretrain.preflight.gpus import GPUS, Gpu, gpu_named
from pretrain.preflight.memory import meta_model
from pretrain.preflight.show import as_values, curve, show
from pretrain.preflight.step_time import Cluster, StepTime, StepWork, communication_bytes, step_time
from tests.command_line import ROOT
from tests.factories.vocabularies import trained

BERT_LARGE = 336_226_108
"""Parameters with both heads."""


def predicted(gpu: Gpu, nodes: int, a_gpu: int, per_example: float, *, sharded: bool) -> StepTime:
    """A step of eight-GPU nodes with `a_gpu` examples a GPU, gradients and weights of two bytes."""
    cluster = Cluster(nodes, 8, gpu)
    moved = communication_bytes(1 if sharded else 0, BERT_LARGE, 1, 2, 2)
    updated = BERT_LARGE / (cluster.ranks if sharded else 1)
    return step_time(StepWork(a_gpu * per_example, updated, moved), cluster)


def per_example(gpu: Gpu, a_gpu: int, examples_a_second: float, *, sharded: bool) -> float:
    """Seconds of arithmetic an example, from the rate of one node: what is not arithmetic is taken off."""
    rest = predicted(gpu, 1, a_gpu, 0.0, sharded=sharded).total
    return (a_gpu / examples_a_second - rest) / a_gpu / (1 + timing.straggling(8))


def deep_learning_examples() -> float:
    """Speed-up of 32 nodes of 8 A100 over one, global batch 65,536 at sequence length 128, 574 sequences a second
    and GPU on one node, FusedLAMB on every rank (NVIDIA DeepLearningExamples, PyTorch: 30.4)."""
    gpu = GPUS["a100-80"]
    seconds = per_example(gpu, 65_536 // 8, 574, sharded=False)
    one = predicted(gpu, 1, 65_536 // 8, seconds, sharded=False)
    return one.total / predicted(gpu, 32, 65_536 // 256, seconds, sharded=False).total


def mlperf() -> float:
    """Sequences a second and GPU on 64 H100 with 72 examples each, from 970 on 8 with 96 each and a distributed LAMB
    (MLPerf Training 3.1, BERT, NVIDIA: 831)."""
    gpu = GPUS["h100"]
    seconds = per_example(gpu, 96, 970, sharded=True)
    return 72 / predicted(gpu, 8, 72, seconds, sharded=True).total


def test_published_scaling_is_met() -> None:
    assert deep_learning_examples() == pytest.approx(30.4, rel=0.02)
    assert mlperf() == pytest.approx(831, rel=0.10)


def test_stage_1_moves_what_its_optimizer_in_deepspeed_moves() -> None:
    """fp32 gradients: all-reduced by BF16_Optimizer, which has no reduce_gradients; else scattered."""
    from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
    from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

    assert hasattr(DeepSpeedZeroOptimizer, "reduce_gradients")
    assert not hasattr(BF16_Optimizer, "reduce_gradients")
    for offload, moved in (("none", 10), ("cpu", 6)):  # offloaded it is DeepSpeedZeroOptimizer in bf16, too
        config = load_config("bert_tiny", ["zero.stage=1", "train.precision=bf16", f"zero.offload={offload}"])
        found = forecast(phases_of(config)[0], Cluster(1, 8, GPUS["h100"]))
        assert found.moved == moved * found.parameters
    assert communication_bytes(1, 100, 1, 4, 2) == 600


def test_without_communication_it_would_not_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "collective_seconds", lambda size, cluster: 0.0)
    assert mlperf() != pytest.approx(831, rel=0.10)
    assert deep_learning_examples() > 30.4 * 1.015


def test_parameters_are_those_of_the_model_tied_ones_once() -> None:
    config = load_config("bert_base", [])
    spare = 30_528 - 30_522  # rows that pad the vocabulary: a vector and a bias each
    assert sum(p.numel() for p in meta_model(config, 30_522).parameters()) == 110_106_428 + spare * 769


def plan_for(*overrides: str, nodes: int = 1) -> Forecast:
    return forecast(phases_of(load_config("bert_base", list(overrides)))[0], Cluster(nodes, 8, GPUS["a100"]))


def test_what_does_not_add_up_is_said() -> None:
    assert plan_for("train.global_batch=2048").warnings == ()
    for overrides, line in (
        ("train.micro_batch=4096", "does not fit: at most"),
        ("train.global_batch=2049", "does not divide among 8 ranks"),
        ("train.global_batch=64 train.micro_batch=256", "fills 3% of train.micro_batch=256"),
        ("schedule.warmup=0.9", "the warm-up takes 900,000"),
        ("encoder.hidden=16384 encoder.heads=128 encoder.intermediate=65536", "alone take"),
    ):
        found = plan_for("train.global_batch=2048", *overrides.split())
        assert any(line in warning for warning in found.warnings), line
    with pytest.raises(UserError, match="16 ranks are more than"):
        plan_for("train.global_batch=8", nodes=2)


def test_a_vocabulary_that_is_still_to_be_trained_has_the_size_of_the_recipe(tmp_path: Path) -> None:
    nowhere = [f"data.vocab={tmp_path / 'vocabulary'}", f"data.out={tmp_path / 'shards'}"]
    assert text_of(load_config("demo", nowhere)).vocabulary == 4000
    save_vocabulary(trained("wordpiece"), tmp_path / "vocabulary")
    assert text_of(load_config("demo", nowhere)).vocabulary == trained("wordpiece").size


def test_more_gpus_cost_more_and_take_less() -> None:
    one, four = (plan_for("train.global_batch=2048", nodes=nodes) for nodes in (1, 4))
    assert one.seconds / 4 < four.seconds < one.seconds
    assert four.tokens == one.tokens == 1_000_000 * 2048 * 128


def test_the_command_shows_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    found = plan_for("train.global_batch=64", "train.micro_batch=256")
    show(found, 1, Console(width=120))
    shown = capsys.readouterr().out
    for words in ("110,111,042 parameters", "> 1", "GPU-hours", "unknown: no shards yet", "! a rank's part"):
        assert words in shown
    values = json.loads(json.dumps(as_values(found)))
    assert values["gpu_hours"] == pytest.approx(8 * found.seconds / 3600)


def test_the_curve_is_the_schedule() -> None:
    assert curve((0.0, 0.5, 1.0), rows=2) == ["    █", "   ██"]


# The table of recipes on eight GPUs in docs/evidence/plan_calibration.md is what `maskmill plan` says today.


EIGHT = Cluster(1, 8, gpu_named("h100"))
PAGE = (ROOT / "docs" / "evidence" / "plan_calibration.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(\w+)((?: [\w.]+=\S+)*)`(?:, phase `(\w+)`)? \| (.+) \|$", re.MULTILINE)


def rows() -> list[tuple[str, str, str, str]]:
    """(recipe, its overrides, phase, the other cells) of each row."""
    _, found, text = PAGE.partition("## Recipes on eight GPUs, as planned\n")
    assert found
    return ROW.findall(re.split(r"^#+ ", text, flags=re.MULTILINE)[0])


def told(batch: int, found: Forecast) -> str:
    """What a row says behind its name."""
    step = found.step
    parts = (step.arithmetic, step.launching, step.optimizer, step.communication, step.total)
    times = " | ".join(f"{1e3 * part:,.1f}" for part in parts)
    return f"{batch:,} | {found.micro_batches} x {found.micro_batch} | {times} | {batch / step.total:,.0f}"


def test_there_are_rows() -> None:
    assert len(rows()) > 8
    assert len(set(rows())) == len(rows())


@pytest.mark.slow
def test_each_row_is_what_the_plan_says() -> None:
    wrong = []
    for recipe, overrides, name, cells in rows():
        phases = forecast_phases(load_config(recipe, overrides.split()), EIGHT)
        ((batch, found),) = [
            (phase.config.train.global_batch, found) for phase, found in phases if phase.name == name
        ]
        if cells != told(batch, found):
            wrong.append(f"{recipe}{overrides} {name}: {told(batch, found)}")
    assert not wrong, "\n".join(wrong)
