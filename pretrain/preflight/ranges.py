"""Define the allowed values of each setting."""

import math
from typing import Any

from data_pipeline.sequences.registry import SEQUENCES
from data_pipeline.settings import MASKINGS, SEPARATORS, UNMASKED, WITHOUT_SEPARATORS
from pretrain.config.settings import RunConfig

CHOICES: dict[str, tuple[Any, ...]] = {
    "data.bad_records": ("stop", "skip"),
    "data.documents": ("blank_line", "file"),
    "data.sentences": ("split", "lines"),
    "data.duplicates": ("keep", "documents", "paragraphs", "both"),
    "data.sequences": tuple(SEQUENCES),
    "data.masking": (*MASKINGS, UNMASKED),
    "data.separators": (*SEPARATORS, WITHOUT_SEPARATORS),
    "data.order": ("shuffled", "sequential"),
    "data.mode": ("fast", "exact"),
    "data.executor": ("local", "dask"),
    "data.verify": ("blocks", "full"),
    "data.on_damage": ("stop", "skip"),
    "vocabulary.kind": ("wordpiece", "bpe", "unigram"),
    "vocabulary.specials": ("", "roberta", "xlnet"),
    "train.precision": ("auto", "fp32", "bf16", "fp16"),
    "train.kernels": ("auto", "triton", "torch"),
    "train.compile": ("auto", "off", "on"),
    "train.on_nan": ("skip", "rollback", "stop"),
    "train.on_spike": ("off", "skip", "rollback", "stop"),
    "zero.stage": (0, 1, 2, 3),
    "zero.offload": ("none", "cpu"),
    "optim.name": ("lamb", "adamw", "stable_adamw", "muon"),
    "optim.variant": ("nvidia", "google", "paper"),
    "optim.muon_rate": ("match_rms_adamw", "original"),
    "optim.muon_precision": ("fp32", "bf16"),
    "schedule.name": ("linear", "polynomial", "nvidia", "cosine", "constant", "wsd"),
    "schedule.decay_shape": ("linear", "one_minus_sqrt"),
    "schedule.span": ("phase", "run"),
    "encoder.sharing": ("none", "all", "attention", "feed_forward"),
    "encoder.activation": ("gelu_tanh", "gelu", "relu", "silu"),
    "encoder.norm": ("layer", "rms"),
    "encoder.norm_place": ("post", "pre"),
    "encoder.positions": ("learned", "rope"),
    "objective.electra.embeddings": ("shared", "disentangled", "separate"),
    "objective.causal.direction": ("left_to_right", "right_to_left"),
    "init_new_words": ("mean", "first", "fresh"),
    "init_positions": ("repeat", "interpolate", "fresh"),
    "monitor.tracker": ("wandb", "tensorboard", "jsonl", "none"),
    "monitor.artifacts": ("none", "index", "all"),
}


DISTILLED = ("distilbert", "distilroberta")
"""Objectives with DistillationSettings."""

MOST = 10**15
"""Maximum of what has no other: beyond it doubles no longer hold every integer, and sums leave 64 bits."""
RANGES: dict[str, tuple[float, float]] = {
    "vocabulary.size": (16, 2**31),
    "vocabulary.min_frequency": (0, MOST),
    "vocabulary.sample_mb": (1, MOST),
    "vocabulary.new_words": (1, 2**31),
    "vocabulary.min_gain": (0, 1_000_000),
    "data.seed": (0, 2**63),
    "data.random_next": (0, 1),
    "data.sequence_length": (8, 65_535),  # positions are stored in 16 bits
    "data.dupe_factor": (1, 10_000),
    "data.short_seq_prob": (0, 1),
    "data.mask_prob": (0, 1),
    "data.random_prob": (0, 1),
    "data.span_p": (0.001, 1),
    "data.max_span": (1, 1000),
    "data.max_ngram": (1, 1000),
    "data.smoothing": (0, 10),
    "data.bad_records_limit": (0, 1),
    "data.bin_width": (0, 65_535),
    "data.held_out": (0, 0.9),
    "data.min_donors": (2, MOST),
    "data.shard_tokens": (1, MOST),
    "data.block_examples": (1, 65_536),
    "data.streams": (0, 65_536),
    "data.workers": (0, 4096),
    "run.ranks": (1, 65_536),
    "run.threads": (0, 4096),
    "run.seed": (0, 2**63),
    "run.stop_after": (0, MOST),
    "run.stopped_exit_code": (3, 255),
    "run.restarts": (0, 1_000_000),
    "run.restart_delay": (0, 86_400),
    "run.step_limit": (0, 1_000_000),
    "run.stage_limit": (0, 1_000_000),
    "run.folder_wait": (0, 86_400),
    "train.steps": (0, MOST),
    "train.minutes": (0, 10_000_000),  # 19 years
    "train.global_batch": (1, MOST),
    "train.batch_ramp": (0, MOST),
    "train.batch_ramp_from": (0, MOST),
    "train.micro_batch": (0, MOST),
    "train.clip": (0, MOST),
    "train.eval_every": (0, MOST),
    "train.eval_examples": (1, MOST),
    "train.probe_every": (0, MOST),
    "train.checkpoint_every": (0, MOST),
    "checkpoint.keep": (1, MOST),
    "checkpoint.keep_every": (0, MOST),
    "train.log_every": (1, MOST),
    "train.spike_sigma": (0.1, MOST),
    "train.spike_window": (4, 1_000_000),
    "zero.sub_group_size": (1, MOST),
    "optim.lr": (0, MOST),
    "optim.eps": (0, 1),
    "optim.weight_decay": (0, MOST),
    "optim.muon_momentum": (0, 0.9999),
    "optim.muon_iterations": (1, 99),
    "optim.muon_lr_ratio": (0, MOST),
    "schedule.warmup": (0, MOST),
    "schedule.power": (0, MOST),
    "schedule.decay": (0, MOST),
    "schedule.decay_to": (0, 1),
    "encoder.layers": (1, 10_000),
    "encoder.hidden": (1, 1_000_000),
    "encoder.embedding_size": (0, 1_000_000),
    "encoder.groups": (1, 10_000),
    "encoder.heads": (1, 100_000),
    "encoder.kv_heads": (0, 100_000),
    "encoder.intermediate": (1, 10_000_000),
    "encoder.dropout": (0, 0.99),
    "encoder.attention_dropout": (0, 0.99),
    "encoder.attention_output_dropout": (-1, 0.99),
    "encoder.max_positions": (8, 65_535),
    "encoder.rope_theta": (1, MOST),
    "encoder.local_rope_theta": (1, MOST),
    "encoder.global_every": (1, 10_000),
    "encoder.local_attention": (2, 131_072),
    "encoder.segments": (0, 65_535),
    "encoder.layer_norm_eps": (0, 1),
    "encoder.initializer_range": (0, 10),
    "objective.electra.generator_share": (0.001, 1),
    "objective.electra.generator_layers": (0, 10_000),
    "objective.electra.discriminator_weight": (0, MOST),
    **{f"objective.{name}.temperature": (0.01, 1000) for name in DISTILLED},
    **{f"objective.{name}.{term}_weight": (0, MOST) for name in DISTILLED for term in ("soft", "mlm", "cos")},
    "objective.xlnet.memory_length": (0, 65_535),
    "monitor.trust_ratios_every": (0, MOST),
    "monitor.alert_every": (0, MOST),
    "monitor.peak_tflops": (0, MOST),
}
"""Minimum and maximum of each number; data.masked_lm_prob and data.max_predictions are checked by MaskBudget."""


def out_of_range(key: str, value: Any) -> str:
    """Return what `value` of the setting `key` must be; empty if it is allowed."""
    if key in CHOICES and value not in CHOICES[key]:
        return f"{key} must be one of {', '.join(map(str, CHOICES[key]))}, got {value}"
    low, high = RANGES.get(key, (-math.inf, math.inf))
    if key not in RANGES or low <= value <= high:
        return ""
    is_too_small = high == MOST and not value > high
    return f"{key} must be {f'at least {low}' if is_too_small else f'in [{low}, {high}]'}, got {value}"


def value_of(config: RunConfig, key: str) -> Any:
    """Return the setting with the dotted name `key`."""
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part)
    return value
