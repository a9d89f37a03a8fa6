"""Compare a Hugging Face config.json with the settings of an encoder; without torch, which takes seconds to import."""

import json
from pathlib import Path
from typing import Any

from data_pipeline.errors import UserError
from pretrain.config.settings import EncoderSettings

ACTIVATIONS = {"gelu_tanh": "gelu_pytorch_tanh", "gelu": "gelu", "relu": "relu"}
"""Our activation -> `hidden_act`. Of the tanh forms this is the one that calls the same kernel as ours."""
READABLE_ACTIVATIONS = {theirs: ours for ours, theirs in ACTIVATIONS.items()} | {"gelu_new": "gelu_tanh"}

CONFIG = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "intermediate": "intermediate_size",
    "max_positions": "max_position_embeddings",
    "layer_norm_eps": "layer_norm_eps",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "initializer_range": "initializer_range",
}
"""Encoder setting -> field of config.json, but for `activation`."""
_MUST_AGREE = ("layers", "hidden", "heads", "intermediate", "max_positions", "layer_norm_eps")


def check_config(folder: Path, settings: EncoderSettings, vocabulary_size: int) -> None:
    """Raises UserError listing how the folder's config.json differs from `settings`, dropout aside."""
    path = folder / "config.json"
    try:
        config: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UserError("cannot be read", where=path, expected="a Hugging Face config.json") from error
    if config.get("model_type") != "bert":
        raise UserError(f"model_type is {config.get('model_type')!r}", where=path, expected="'bert'")
    differences = [
        f"encoder.{ours} is {getattr(settings, ours)}, {CONFIG[ours]} {config.get(CONFIG[ours])}"
        for ours in _MUST_AGREE
        if config.get(CONFIG[ours], 1e-12 if ours == "layer_norm_eps" else None) != getattr(settings, ours)
    ]
    theirs = config.get("hidden_act", "gelu")
    if READABLE_ACTIVATIONS.get(theirs) != settings.activation:
        differences.append(f"encoder.activation is {settings.activation}, hidden_act {theirs}")
    if config.get("vocab_size") != vocabulary_size:
        differences.append(
            f"the vocabulary has {vocabulary_size} entries, vocab_size is {config.get('vocab_size')}"
        )
    if config.get("type_vocab_size", 2) != 2:
        differences.append(f"2 segments, type_vocab_size is {config['type_vocab_size']}")
    if differences:
        raise UserError(f"differs from the run's settings: {'; '.join(differences)}", where=path)


def weight_files(folder: Path) -> list[Path]:
    """The folder's safetensors files. Raises UserError where it has none."""
    paths = sorted(folder.glob("model*.safetensors"))
    if not paths:
        remedy = (
            "pytorch_model.bin can run code when it is loaded: convert it with transformers' save_pretrained"
        )
        raise UserError("no weights", where=folder, expected="model.safetensors", remedy=remedy)
    return paths
