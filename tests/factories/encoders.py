"""Write small Hugging Face encoders of random weights, of the classes that people evaluate."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers

from data_pipeline.vocabulary.base import Vocabulary, json_text
from data_pipeline.vocabulary.files import parse_tokenizer_json
from pretrain.export.tokenizer import INPUTS, write_tokenizer
from pretrain.huggingface.load import quiet
from pretrain.tasks.base import Material, ScoreInputs
from pretrain.tasks.encoders import Encoder
from pretrain.tasks.settings import EvaluationSettings
from tests.factories.vocabularies import modernbert_tokenizer, trained

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 66,
}
NO_SEGMENTS = ("input_ids", "attention_mask")
ENCODERS: dict[str, tuple[str, str, tuple[str, ...], dict[str, Any]]] = {
    "bert": ("BertForPreTraining", "wordpiece", INPUTS, {}),
    "roberta": ("RobertaForMaskedLM", "bpe", NO_SEGMENTS, {"type_vocab_size": 1}),
    "albert": ("AlbertForMaskedLM", "unigram", INPUTS, {"embedding_size": 16}),
    "electra": ("ElectraForMaskedLM", "wordpiece", INPUTS, {"embedding_size": 32}),
    "discriminator": ("ElectraForPreTraining", "wordpiece", INPUTS, {"embedding_size": 32}),
    "ernie": ("ErnieForMaskedLM", "wordpiece", INPUTS, {}),
    "distilbert": (
        "DistilBertForMaskedLM",
        "wordpiece",
        NO_SEGMENTS,
        {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64},
    ),
    "xlnet": (
        "XLNetLMHeadModel",
        "unigram",
        INPUTS,
        {"d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 64},
    ),
    "modernbert": (
        "ModernBertForMaskedLM",
        "wordpiece",
        NO_SEGMENTS,
        {"cls_token_id": 2, "sep_token_id": 3, "local_attention": 8, "global_attn_every_n_layers": 2},
    ),
    "causal": ("BertLMHeadModel", "wordpiece", INPUTS, {"is_decoder": True}),
}
"""Name -> class, kind of vocabulary, the tokenizer's inputs, further fields of its config."""
_FOLDERS = TemporaryDirectory()


@cache
def encoder_folder(name: str) -> Path:
    """The folder of such an encoder. Its weights are three times as wide as usual, so that inputs matter."""
    class_name, kind, inputs, fields = ENCODERS[name]
    folder = Path(_FOLDERS.name) / name
    write_encoder(folder, class_name, trained(kind), inputs, fields)
    return folder


def write_encoder(
    folder: Path,
    class_name: str,
    vocabulary: Vocabulary,
    inputs: tuple[str, ...],
    fields: dict[str, Any],
    positions: int = 64,
) -> None:
    """Write an encoder of this class of transformers, of random weights, with its tokenizer to a new folder."""
    xlnet = class_name.startswith("XLNet")
    ids = {token: i for i, token in enumerate(vocabulary.tokens)}
    specials = vocabulary.specials
    folder.mkdir(parents=True)
    model_class = getattr(transformers, class_name)
    config = model_class.config_class(
        **{
            **({} if xlnet else SIZES),
            "vocab_size": vocabulary.size,
            "pad_token_id": ids[specials.pad],
            "bos_token_id": ids[specials.cls],
            "eos_token_id": ids[specials.sep],
            "initializer_range": 0.06,
            **fields,
        }
    )
    torch.manual_seed(0)
    with quiet():
        model_class(config).save_pretrained(folder)
    write_tokenizer(json_text(vocabulary.definition()), folder, positions, inputs, cls_last=xlnet)


def write_modernbert(folder: Path, **fields: Any) -> None:
    """Write a ModernBERT as it is published, its tokenizer in its own form. `fields`: of its config."""
    tokenizer = json.dumps(modernbert_tokenizer())
    vocabulary = parse_tokenizer_json(tokenizer, "tokenizer.json")
    small = {"global_attn_every_n_layers": 2, "local_attention": 8}
    small |= {"cls_token_id": vocabulary.cls, "sep_token_id": vocabulary.sep}
    longest = fields.get("max_position_embeddings", 64)
    write_encoder(folder, "ModernBertForMaskedLM", vocabulary, NO_SEGMENTS, small | fields, longest)
    (folder / "tokenizer.json").write_text(tokenizer, "utf-8")


def inputs_of(
    encoder: Encoder,
    material: Material = Material([], 0, {}),  # noqa: B008 (frozen)
    settings: EvaluationSettings = EvaluationSettings(),  # noqa: B008 (nothing writes into it)
    seed: int = 1,
    on_progress: Callable[[int], None] = lambda n: None,
) -> ScoreInputs:
    """What a task without training scores."""
    return ScoreInputs(encoder, material, settings, seed, on_progress)
