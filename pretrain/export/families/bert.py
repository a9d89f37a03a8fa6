"""Translate between our parameter names and Hugging Face's, both ways from one dict, and load the weights of a Hugging
Face folder.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from data_pipeline.errors import UserError
from pretrain.config.settings import EncoderSettings
from pretrain.export.families.bert_config import check_config, weight_files

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


def _stored_tensors(folder: Path) -> dict[str, Tensor]:
    stored: dict[str, Tensor] = {}
    for path in weight_files(folder):
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
