"""Shipped recipes at their sizes: Google's small models, and the one of three billion parameters made narrow."""

import json
from pathlib import Path

import pytest
import yaml

from launch.recipe import load_config
from pretrain.config.phases import batch_sizes, phases_of
from pretrain.config.settings import RunConfig
from pretrain.huggingface.registry import chosen_families
from pretrain.objectives.registry import load
from pretrain.preflight.forecast import forecast, rate_of, text_of
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


MODERN = {  # layers, width, feed-forward width, and parameters in all at 50,368 words (the papers' tables)
    "ettin_17m": (7, 256, 384, 16.8),
    "ettin_32m": (10, 384, 576, 31.9),
    "ettin_68m": (19, 512, 768, 68.1),
    "ettin_150m": (22, 768, 1152, 149),
    "ettin_400m": (28, 1024, 2624, 395),
    "ettin_1b": (28, 1792, 3840, 1028),
    "modernbert_base": (22, 768, 1152, 149),
    "modernbert_large": (28, 1024, 2624, 395),
}


@pytest.mark.parametrize("name", MODERN)
def test_modern_encoders_have_the_published_sizes(name: str) -> None:
    layers, hidden, inner, millions = MODERN[name]
    config = load_config(name, [])
    encoder = config.encoder
    sizes = (encoder.layers, encoder.hidden, encoder.head_size, encoder.intermediate)
    assert sizes == (layers, hidden, 64, inner)
    # model_config of their yaml files: windows, eps, dropout of the attention's output alone, full_megatron
    windows = (encoder.global_every, encoder.local_attention, encoder.layer_norm_eps)
    assert windows == (3, 128, 1e-5)
    rates = (encoder.dropout, encoder.attention_dropout, encoder.attention_output_dropout)
    assert rates == (0.0, 0.0, 0.1)
    assert (encoder.initializer_range, encoder.scale_residual_init) == (0.02, True)
    assert [family.export_class for family in chosen_families(load(config).families, config)] == [
        "ModernBertForMaskedLM"
    ]
    parameters = sum(p.numel() for p in meta_model(config, 50_368).parameters())
    assert parameters / 1e6 == pytest.approx(millions, rel=0.02)


def billions(config: RunConfig, updates: float) -> float:
    """Tokens of so many updates of full examples."""
    return batch_sizes(config).before(int(updates)) * config.data.sequence_length / 1e9


MODERNBERT = {  # rates and batches of the phases, the smallest batch, billions of tokens: warm-ups of batch and rate
    "modernbert_base": ([8e-4, 3e-4, 3e-4], [4608, 8 * 72, 8 * 72], 768, 50, 3),
    "modernbert_large": ([5e-4, 5e-5, 5e-5], [4928, 8 * 77, 8 * 78], 448, 10, 2),
}
"""Of section 2.2 and table 3 of arXiv 2412.13663, whose later batches are those of one of eight GPUs."""


@pytest.mark.parametrize("name", MODERNBERT)
def test_modernberts_phases_are_the_published_ones(name: str) -> None:
    rates, batches, smallest, batch_warmup, rate_warmup = MODERNBERT[name]
    phases = phases_of(load_config(name, []))
    configs = [phase.config for phase in phases]
    assert [c.data.sequence_length for c in configs] == [1024, 8192, 8192]
    assert [billions(c, c.train.steps) for c in configs] == pytest.approx([1700, 250, 50], rel=1e-3)
    assert [c.train.global_batch for c in configs] == batches
    assert [c.train.global_batch // 8 % c.train.micro_batch for c in configs] == [0, 0, 0], (
        "full micro-batches"
    )
    main, ramp = configs[0], batch_sizes(configs[0])
    assert (ramp.smallest, ramp.at(ramp.ramp), [batch_sizes(c).ramp for c in configs[1:]]) == (
        smallest,
        batches[0],
        [0, 0],
    )
    assert billions(main, ramp.ramp) == pytest.approx(batch_warmup, rel=1e-3)
    assert billions(main, main.schedule.warmup) == pytest.approx(rate_warmup, rel=1e-3)
    assert rate_of(phases[0], int(main.schedule.warmup) // 2) < 0.51 * rates[0]
    assert [rate_of(phase, phase.config.train.steps // 2) for phase in phases[:2]] == rates[:2]
    quarter = rate_of(phases[2], configs[2].train.steps // 4)
    assert quarter == pytest.approx(0.5 * rates[2], rel=1e-3), "1 - sqrt is half done"
    assert rate_of(phases[2], configs[2].train.steps) == pytest.approx(0, abs=1e-3 * rates[2])
    assert {(c.optim.name, c.optim.weight_decay, c.optim.decoupled_decay, c.train.clip) for c in configs} == {
        ("stable_adamw", 1e-5, True, 0.0)
    }
    assert (main.optim.betas, main.optim.eps, main.data.masked_lm_prob) == ([0.9, 0.98], 1e-6, 0.3)


ETTIN = {  # rates of the phases, weight decay, billions of tokens: warm-ups of batch and rate, phases
    "ettin_17m": ([3e-3, 3e-3, 1.5e-3], 3e-4, 125, 4, [1700, 250, 50]),
    "ettin_32m": ([3e-3, 3e-3, 1.5e-3], 3e-4, 100, 4, [1700, 250, 50]),
    "ettin_68m": ([3e-3, 3e-3, 1.5e-3], 3e-4, 75, 3, [1700, 250, 50]),
    "ettin_150m": ([8e-4, 8e-4, 4e-4], 1e-5, 50, 3, [1700, 250, 50]),
    "ettin_400m": ([5e-4, 5e-4, 2.5e-4], 1e-5, 10, 2, [1700, 250, 50]),
    "ettin_1b": ([5e-4, 5e-4, 2.5e-4], 5e-5, 3, 2, [1700, 83.333, 16.667]),
}
"""Of encoder_*.yaml, and those in de_decay and prolong_decay, for each size in pretraining/configs/standard of
JHU-CLSP/ettin-encoder-vs-decoder."""


@pytest.mark.parametrize("name", ETTIN)
def test_ettins_phases_are_the_published_ones(name: str) -> None:
    rates, weight_decay, batch_warmup, rate_warmup, tokens = ETTIN[name]
    phases = phases_of(load_config(name, []))
    configs = [phase.config for phase in phases]
    assert [c.data.sequence_length for c in configs] == [1024, 7999, 7999]
    assert configs[0].encoder.max_positions == 7999, "max_position_embeddings of two published config.json"
    assert [c.train.global_batch for c in configs] == [4608] * 3
    assert [billions(c, c.train.steps) for c in configs] == pytest.approx(tokens, rel=1e-3)
    main, long = configs[:2]
    assert billions(main, main.train.batch_ramp) == pytest.approx(batch_warmup, rel=0.01)
    assert billions(main, main.schedule.warmup) == pytest.approx(rate_warmup, rel=0.01)
    warm = rate_of(phases[0], int(main.schedule.warmup))
    assert [warm, *(rate_of(phase, 0) for phase in phases[1:])] == rates
    ends = [rate_of(phase, phase.config.train.steps) for phase in phases]
    assert ends == pytest.approx([rates[0], 0.5 * rates[1], 0.04 * rates[2]])
    quarter = rate_of(phases[1], long.train.steps // 4)
    assert quarter == pytest.approx(0.75 * rates[1], rel=1e-3), "1 - sqrt is half done"
    assert {(c.optim.name, c.optim.weight_decay, c.optim.decoupled_decay) for c in configs} == {
        ("stable_adamw", weight_decay, True)
    }
    assert [c.data.masked_lm_prob for c in configs] == [0.3, 0.3, 0.15]
    assert not any(text_of(c).capped for c in configs), "data.max_predictions cuts no mask off"
    local = 10_000 if name == "ettin_17m" else 160_000
    thetas = [(c.encoder.rope_theta, c.encoder.local_rope_theta) for c in configs]
    assert thetas == [(10_000, 10_000), (160_000, local), (160_000, 160_000)]


def test_three_billion_parameters_are_planned() -> None:
    config = load_config("bert_3b", [])
    assert (config.zero.stage, config.train.activation_checkpointing) == (1, True)
    found = forecast(phases_of(config)[0], Cluster(1, 8, GPUS["h100"]))
    assert found.parameters == pytest.approx(3.2e9, rel=0.02)
    assert found.memory[1].largest_micro_batch >= 1024 // 64
    assert found.memory[3].states.total < found.memory[1].states.total / 2
    cluster = Cluster(8, 8, GPUS["h100"])
    lower, higher = (
        forecast(
            phases_of(load_config("bert_3b", ["train.micro_batch=8", f"zero.stage={stage}"]))[0], cluster
        )
        for stage in (1, 3)
    )
    assert higher.step.total > lower.step.total
    assert any("stage 1 fits as well" in line for line in higher.warnings)
    whole = load_config("bert_3b", ["train.micro_batch=16", "zero.stage=3"])
    assert not forecast(phases_of(whole)[0], cluster).warnings, "in one micro-batch it gathers no more often"


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
    stage = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["zero"]["stage"]
    assert stage == load_config("bert_3b", []).zero.stage, "the recipe's own"
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [line["mlm_loss"] for line in lines if line["kind"] == "train"]
    assert len(losses) == 2
    assert all(0 < loss < 20 for loss in losses)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["parameters"] == pytest.approx(
        40 * 12 * 256**2, rel=0.05
    )
