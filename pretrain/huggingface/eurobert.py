"""Define EuroBERT in transformers: RMSNorm before the halves of its layers, RoPE, and shared heads of keys."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from data_pipeline.shards.index import VocabularyStamp
from pretrain.config.encoder import EncoderSettings
from pretrain.config.settings import RunConfig
from pretrain.huggingface.base import Config, Field, Head, Rotary
from pretrain.huggingface.bert import ACTIVATIONS, READABLE_ACTIVATIONS
from pretrain.huggingface.modernbert import MODERNBERT_FOR_MASKED_LM

_LAYER = "encoder.layers.{i}"


class EuroBert(Rotary):
    """EuroBERT, whose number of key heads is always stated."""

    also: ClassVar[Mapping[str, tuple[str, ...]]] = {"attention_bias": ("mlp_bias",)}

    def encoder(self, run: RunConfig) -> EncoderSettings:
        """Return the settings of the run's encoder, with the heads of keys as a number."""
        return replace(run.encoder, kv_heads=run.encoder.key_heads)

    def config(self, run: RunConfig, vocabulary: VocabularyStamp) -> dict[str, Any]:
        """Return the fields of config.json, without class and dtype, with the base of RoPE where version 5 has it."""
        rope = {"rope_type": "default", "rope_theta": run.encoder.rope_theta}
        return super().config(run, vocabulary) | {"rope_parameters": rope}

    def settings(self, config: Config) -> dict[str, Any]:
        """Return the encoder settings stated in a config.json, by name; None for those that it lacks or we do not
        have."""
        rope = config.get("rope_parameters") or {}
        plain = rope.get("rope_type", "default") == "default"
        stated = {"rope_theta": rope.get("rope_theta") if plain else None} if rope else {}
        return super().settings({**config, **stated})


EUROBERT_FOR_MASKED_LM = EuroBert(
    export_class="EuroBertForMaskedLM",
    model_type="eurobert",
    prefix="model",
    what="A EuroBERT with a masked-language-model head: RMSNorm before the halves of its layers, rotary positions,"
    " gated feed-forward layers, and heads of keys that several queries may share. It has no pooler.",
    names={
        "encoder.embeddings.word": "model.embed_tokens",
        f"{_LAYER}.attention_norm": "model.layers.{i}.input_layernorm",
        f"{_LAYER}.attention.query": "model.layers.{i}.self_attn.q_proj",
        f"{_LAYER}.attention.key": "model.layers.{i}.self_attn.k_proj",
        f"{_LAYER}.attention.value": "model.layers.{i}.self_attn.v_proj",
        f"{_LAYER}.attention.output": "model.layers.{i}.self_attn.o_proj",
        f"{_LAYER}.feed_forward_norm": "model.layers.{i}.post_attention_layernorm",
        f"{_LAYER}.feed_forward.intermediate": "model.layers.{i}.mlp.gate_proj",
        f"{_LAYER}.feed_forward.gate": "model.layers.{i}.mlp.up_proj",
        f"{_LAYER}.feed_forward.output": "model.layers.{i}.mlp.down_proj",
        "encoder.final_norm": "model.norm",
        "mlm_head": "lm_head",  # its bias, one number per word
    },
    heads={"mlm": Head("logits")},
    fields={
        "layers": "num_hidden_layers",
        "hidden": "hidden_size",
        "heads": "num_attention_heads",
        "kv_heads": "num_key_value_heads",
        "intermediate": "intermediate_size",
        "activation": Field("hidden_act", ACTIVATIONS.__getitem__, READABLE_ACTIVATIONS.get),
        "max_positions": "max_position_embeddings",
        "layer_norm_eps": "rms_norm_eps",
        "biases": "attention_bias",
        "rope_theta": "rope_theta",
        "attention_dropout": "attention_dropout",
        "initializer_range": "initializer_range",
    },
    implied={
        "norm": "rms",
        "norm_place": "pre",
        "norm_biases": False,
        "embedding_norm": False,
        "head_transform": False,
        "gated": True,
        "positions": "rope",
        "global_every": 1,
        "segments": 0,
    },
    fixed={"tie_word_embeddings": True},
    defaults={
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "attention_bias": False,
        "mlp_bias": False,
        "rope_theta": 10_000.0,
    },
    special_ids={
        "pad_token_id": "pad",
        "bos_token_id": "cls",
        "eos_token_id": "sep",
        "mask_token_id": "mask",
    },
    beside=MODERNBERT_FOR_MASKED_LM.beside,
    tied={"lm_head.weight": "model.embed_tokens.weight"},
    model_inputs=("input_ids", "attention_mask"),
    tags=("eurobert", "masked-lm"),
)
