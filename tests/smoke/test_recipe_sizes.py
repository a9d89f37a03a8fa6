"""Shipped recipes at their sizes: Google's small models, and the one of three billion parameters made narrow."""

import json
from pathlib import Path

import pytest

from launch.settings.recipe import load_config
from pretrain.config.batch_sizes import batch_sizes
from pretrain.config.phases import phases_of
from pretrain.preflight.forecast import forecast
from pretrain.preflight.gpus import GPUS
from pretrain.preflight.memory import meta_model
from pretrain.preflight.step_time import Cluster
from tests.command_line import Maskmill

pytestmark = pytest.mark.slow

SIZES = {  # layers, width, heads, and parameters in all (google-research/bert's table of small models)
    "bert_tiny": (2, 128, 2, 4.4),
    "bert_mini": (4, 256, 4, 11.3),
    "bert_small": (4, 512, 8, 29.1),
    "bert_medium": (8, 512, 8, 41.7),
}


@pytest.mark.parametrize("name", SIZES)
def test_small_models_have_googles_sizes(name: str) -> None:
    layers, hidden, heads, millions = SIZES[name]
    config = load_config(name, [])
    encoder = config.encoder
    assert (encoder.layers, encoder.hidden, encoder.heads) == (layers, hidden, heads)
    assert encoder.intermediate == 4 * hidden
    parameters = sum(p.numel() for p in meta_model(config, 30_522).parameters())
    assert parameters / 1e6 == pytest.approx(millions, rel=0.02)


MODERN = {  # layers, width, and parameters in all at 50,368 words (the papers' tables)
    "ettin_17m": (7, 256, 16.8),
    "ettin_32m": (10, 384, 31.9),
    "ettin_68m": (19, 512, 68.1),
    "ettin_150m": (22, 768, 149),
    "ettin_400m": (28, 1024, 395),
    "ettin_1b": (28, 1792, 1028),
    "modernbert_base": (22, 768, 149),
    "modernbert_large": (28, 1024, 395),
}


@pytest.mark.parametrize("name", MODERN)
def test_modern_encoders_have_the_published_sizes(name: str) -> None:
    layers, hidden, millions = MODERN[name]
    config = load_config(name, [])
    encoder = config.encoder
    assert (encoder.layers, encoder.hidden, encoder.head_size) == (layers, hidden, 64)
    parameters = sum(p.numel() for p in meta_model(config, 50_368).parameters())
    assert parameters / 1e6 == pytest.approx(millions, rel=0.02)
    phases = [phase.config for phase in phases_of(config)]
    assert [phase.data.sequence_length for phase in phases] == [1024, 8192, 8192]
    tokens = sum(batch_sizes(p).before(p.train.steps) * p.data.sequence_length for p in phases)
    assert tokens == pytest.approx(2e12, rel=0.01)


def test_three_billion_parameters_are_planned() -> None:
    config = load_config("bert_3b", [])
    assert (config.zero.stage, config.train.activation_checkpointing) == (3, True)
    found = forecast(phases_of(config)[0], Cluster(4, 8, GPUS["h100"]))
    assert found.parameters == pytest.approx(3.2e9, rel=0.02)
    assert found.memory[3].largest_micro_batch >= config.train.micro_batch
    assert found.memory[3].states.total < found.memory[1].states.total / 2


@pytest.mark.multirank
def test_three_billion_parameters_at_a_tenth_of_the_width(
    tiny: list[str], maskmill: Maskmill, tmp_path: Path
) -> None:
    own = ("encoder.", "train.", "optim.lr")
    narrow = ["encoder.hidden=256", "encoder.heads=4", "encoder.intermediate=1024", "monitor.tracker=jsonl"]
    batch = ["train.global_batch=2", "train.micro_batch=1", "train.steps=2", "schedule.warmup=1"]
    batch += ["train.log_every=1", "train.eval_examples=2", "train.checkpoint_every=0"]
    kept = [s for s in tiny if not s.startswith(own)]
    kept += ["data.dupe_factor=3"]  # that of the shards
    maskmill("train", "bert_3b", *kept, *narrow, *batch, f"run.dir={tmp_path}/run", "run.ranks=2")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [line["mlm_loss"] for line in lines if line["kind"] == "train"]
    assert len(losses) == 2
    assert all(0 < loss < 20 for loss in losses)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["parameters"] == pytest.approx(
        40 * 12 * 256**2, rel=0.05
    )
