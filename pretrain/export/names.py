"""Our names <-> Hugging Face's names, both ways from one dict; a Hugging Face folder in, weights by our names out."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from data_pipeline.errors import UserError
from pretrain.config import EncoderSettings

# `{i}` is a layer's number. Both columns go on with .weight and .bias where the parameter has them.
NAMES = {
    "encoder.embeddings.word": "bert.embeddings.word_embeddings",
    "encoder.embeddings.position": "bert.embeddings.position_embeddings",
    "encoder.embeddings.segment": "bert.embeddings.token_type_embeddings",
    "encoder.embeddings.norm": "bert.embeddings.LayerNorm",
    "encoder.layers.{i}.attention.query": "bert.encoder.layer.{i}.attention.self.query",
    "encoder.layers.{i}.attention.key": "bert.encoder.layer.{i}.attention.self.key",
    "encoder.layers.{i}.attention.value": "bert.encoder.layer.{i}.attention.self.value",
    "encoder.layers.{i}.attention.output": "bert.encoder.layer.{i}.attention.output.dense",
    "encoder.layers.{i}.attention_norm": "bert.encoder.layer.{i}.attention.output.LayerNorm",
    "encoder.layers.{i}.feed_forward.intermediate": "bert.encoder.layer.{i}.intermediate.dense",
    "encoder.layers.{i}.feed_forward.output": "bert.encoder.layer.{i}.output.dense",
    "encoder.layers.{i}.feed_forward_norm": "bert.encoder.layer.{i}.output.LayerNorm",
    "mlm_head.dense": "cls.predictions.transform.dense",
    "mlm_head.norm": "cls.predictions.transform.LayerNorm",
    "mlm_head": "cls.predictions",  # its bias, one number a word
    "nsp_head.pooler": "bert.pooler.dense",
    "nsp_head.classifier": "cls.seq_relationship",
}

# Copies of tied tensors (of `value`), which a file may hold and we never write: with both members present and
# different, transformers leaves them untied without a word.
TIED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
BUFFERS = ("bert.embeddings.position_ids", "bert.embeddings.token_type_ids")
LEGACY = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}

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


def to_hugging_face(name: str) -> str:
    """The Hugging Face name of our parameter `name`. Raises KeyError for a name that no objective here has."""
    return _translated(name, NAMES)


def from_hugging_face_name(name: str) -> str:
    """Our name of the Hugging Face parameter `name`. Raises KeyError for one that we have no place for."""
    for old, new in LEGACY.items():
        name = name.replace(old, new)
    return _translated(name, {theirs: ours for ours, theirs in NAMES.items()})


def _translated(name: str, table: Mapping[str, str]) -> str:
    stem, _, kind = name.rpartition(".")
    parts = stem.split(".")
    number = next((part for part in parts if part.isdecimal()), "")
    pattern = ".".join("{i}" if part == number else part for part in parts)
    return f"{table[pattern].replace('{i}', number)}.{kind}"


def from_hugging_face(
    folder: str | Path, settings: EncoderSettings, vocabulary_size: int
) -> dict[str, Tensor]:
    """The weights of a BERT folder by our names, float32, without vocabulary padding: heads that the folder lacks
    are lacking here too. Only safetensors is read: loading it runs no code.

    Raises UserError where the folder is not a BERT, or its config.json differs from `settings`."""
    folder = Path(folder)
    check_config(folder, settings, vocabulary_size)
    stored = _stored_tensors(folder)
    if not any(name.startswith(("bert.", "cls.")) for name in stored):
        stored = {f"bert.{name}": tensor for name, tensor in stored.items()}  # a bare BertModel
    state, unknown = {}, []
    for name, tensor in _sources(stored, folder).items():
        try:
            state[from_hugging_face_name(name)] = tensor.to(torch.float32)
        except KeyError:
            unknown.append(name)
    if unknown:
        raise UserError(
            f"holds tensors of another kind of model: {_some(unknown)}", where=folder, expected="a BERT"
        )
    return state


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


def _stored_tensors(folder: Path) -> dict[str, Tensor]:
    paths = sorted(folder.glob("model*.safetensors"))
    if not paths:
        remedy = (
            "pytorch_model.bin can run code when it is loaded: convert it with transformers' save_pretrained"
        )
        raise UserError("no weights", where=folder, expected="model.safetensors", remedy=remedy)
    stored: dict[str, Tensor] = {}
    for path in paths:
        try:
            stored |= load_file(path)
        except SafetensorError as error:
            raise UserError(
                f"is damaged: {error}", where=path, expected="a whole safetensors file"
            ) from error
    return stored


def _sources(stored: Mapping[str, Tensor], folder: Path) -> dict[str, Tensor]:
    """The tensors that are parameters of ours: no buffers, one of each tied pair under its source's name."""
    sources = {name: tensor for name, tensor in stored.items() if name not in TIED and name not in BUFFERS}
    for copy, source in TIED.items():
        if copy in stored and not torch.equal(stored[copy], sources.setdefault(source, stored[copy])):
            raise UserError(
                f"{copy} differs from {source}",
                where=folder,
                expected="tied weights, as every model here has them",
            )
    return sources


def _some(names: Iterable[str], count: int = 3) -> str:
    listed = sorted(names)
    return ", ".join(listed[:count]) + (f" and {len(listed) - count} more" if len(listed) > count else "")
