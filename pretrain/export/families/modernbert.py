"""Define ModernBERT and EuroBERT in transformers: encoders with norms before the halves of their layers, and RoPE.

ModernBERT's config.json has keys of two generations: those of transformers 4.48, which version 5 reads too, and
`layer_types` and `rope_parameters`, which take their place there. Both are written; the newer ones decide where a
folder has both.
"""

import reprlib
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from data_pipeline.shards.schema import VocabularyStamp
from pretrain.config.settings import EncoderSettings, RunConfig
from pretrain.export.families.base import Config, Family, Field, Head, Part
from pretrain.export.families.bert import ACTIVATIONS, READABLE_ACTIVATIONS

if TYPE_CHECKING:
    import transformers
    from torch import Tensor

    from pretrain.model.batch import MicroBatch

_LAYER = "encoder.layers.{i}"
_LOCAL, _GLOBAL = "sliding_attention", "full_attention"
UNSCALED: tuple[object, ...] = (None, {}, {"rope_type": "default"}, {"type": "default"})
"""Values of rope_scaling that change no angle."""


class Rotary(Family):
    """A family whose class states `biases` in several fields, and rotates in float32."""

    also: ClassVar[Mapping[str, tuple[str, ...]]]
    """Field -> further fields that have its value."""

    def config(self, run: RunConfig, vocabulary: VocabularyStamp) -> dict[str, Any]:
        """Return the fields of config.json, without class and dtype."""
        fields = super().config(run, vocabulary)
        return fields | {name: fields[one] for one, others in self.also.items() for name in others}

    def differences(self, config: Config, run: RunConfig, vocabulary_size: int) -> list[str]:
        """Describe how a config.json differs from the settings of a run that is to start from its weights, one line
        each."""
        known = {**self.defaults, **config}
        found = super().differences(config, run, vocabulary_size)
        if known.get("rope_scaling") not in UNSCALED:  # the older name; version 5 reads it too
            found.append(f"rope_scaling is {reprlib.repr(known['rope_scaling'])}, which must be null")
        return found + [
            f"{name} is {known[name]}, {one} {known.get(one)}, which must be equal"
            for one, others in self.also.items()
            for name in others
            if name in known and known[name] != known.get(one)
        ]

    def logits(
        self, model: "transformers.PreTrainedModel", batch: "MicroBatch", pad: int
    ) -> "dict[str, Tensor]":
        """Compute their logits for a packed batch by the names of our heads; in float64 without rounding between."""
        from pretrain.export.families.float64 import KeepFloat64

        with KeepFloat64():
            return super().logits(model, batch, pad)


class ModernBert(Rotary):
    """ModernBERT, with the keys of both generations."""

    also: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "attention_bias": ("mlp_bias", "classifier_bias"),
        "hidden_activation": ("classifier_activation",),
    }

    def config(self, run: RunConfig, vocabulary: VocabularyStamp) -> dict[str, Any]:
        """Return the fields of config.json, without class and dtype. Dropout of embeddings and of feed-forward layers
        is one setting here; a folder's may differ, as all dropout may."""
        return super().config(run, vocabulary) | {"mlp_dropout": run.encoder.dropout}

    def settings(self, config: Config) -> dict[str, Any]:
        """Return the encoder settings stated in a config.json, by name; None for those that it lacks or we do not
        have."""
        return super().settings(older_keys(config))

    def differences(self, config: Config, run: RunConfig, vocabulary_size: int) -> list[str]:
        """Describe how a config.json differs from the settings of a run that is to start from its weights, one line
        each."""
        return super().differences(older_keys(config), run, vocabulary_size)


def older_keys(config: Config) -> dict[str, Any]:
    """Add to a ModernBERT's config.json the keys of transformers 4.48, from those that took their place; None for a
    pattern of layers or a kind of rotation that they cannot say."""
    found = dict(config)
    for kind, key in ((_GLOBAL, "global_rope_theta"), (_LOCAL, "local_rope_theta")):
        rope = (config.get("rope_parameters") or {}).get(kind)
        if rope:
            plain = rope.get("rope_type", "default") == "default"
            found[key] = rope.get("rope_theta", found.get(key)) if plain else None
    if types := config.get("layer_types"):
        stated = config.get("global_attn_every_n_layers")
        found["global_attn_every_n_layers"] = stated if stated and _is_every(types, stated) else _every(types)
    return found


def _every(types: list[str]) -> int | None:
    """Return n where every n-th layer is global; the number of layers where only the first is."""
    places = [number for number, kind in enumerate(types) if kind == _GLOBAL]
    every = places[1] if len(places) > 1 else len(types)
    return every if _is_every(types, every) else None


def _is_every(types: list[str], every: int) -> bool:
    return types == [_LOCAL if number % every else _GLOBAL for number in range(len(types))]


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


MODERNBERT_FOR_MASKED_LM = ModernBert(
    export_class="ModernBertForMaskedLM",
    model_type="modernbert",
    prefix="model",
    what="A ModernBERT with a masked-language-model head: norms before the halves of its layers, rotary positions,"
    " gated feed-forward layers, and local attention between layers of global attention. It has no pooler.",
    names={
        "encoder.embeddings.word": "model.embeddings.tok_embeddings",
        "encoder.embeddings.norm": "model.embeddings.norm",
        f"{_LAYER}.attention_norm": "model.layers.{i}.attn_norm",
        f"{_LAYER}.attention.query": Part("model.layers.{i}.attn.Wqkv", 0, 3),
        f"{_LAYER}.attention.key": Part("model.layers.{i}.attn.Wqkv", 1, 3),
        f"{_LAYER}.attention.value": Part("model.layers.{i}.attn.Wqkv", 2, 3),
        f"{_LAYER}.attention.output": "model.layers.{i}.attn.Wo",
        f"{_LAYER}.feed_forward_norm": "model.layers.{i}.mlp_norm",
        f"{_LAYER}.feed_forward.intermediate": Part("model.layers.{i}.mlp.Wi", 0, 2),
        f"{_LAYER}.feed_forward.gate": Part("model.layers.{i}.mlp.Wi", 1, 2),
        f"{_LAYER}.feed_forward.output": "model.layers.{i}.mlp.Wo",
        "encoder.final_norm": "model.final_norm",
        "mlm_head.dense": "head.dense",
        "mlm_head.norm": "head.norm",
        "mlm_head": "decoder",  # its bias, one number per word
    },
    heads={"mlm": Head("logits")},
    fields={
        "layers": "num_hidden_layers",
        "hidden": "hidden_size",
        "heads": "num_attention_heads",
        "intermediate": "intermediate_size",
        "activation": Field("hidden_activation", ACTIVATIONS.__getitem__, READABLE_ACTIVATIONS.get),
        "max_positions": "max_position_embeddings",
        "layer_norm_eps": "norm_eps",
        "norm_biases": "norm_bias",
        "biases": "attention_bias",
        "rope_theta": "global_rope_theta",
        "local_rope_theta": "local_rope_theta",
        "global_every": "global_attn_every_n_layers",
        "local_attention": "local_attention",
        "dropout": "embedding_dropout",
        "attention_dropout": "attention_dropout",
        "initializer_range": "initializer_range",
    },
    implied={
        "norm": "layer",
        "norm_place": "pre",
        "embedding_norm": True,
        "head_transform": True,
        "gated": True,
        "kv_heads": 0,
        "positions": "rope",
        "segments": 0,
    },
    fixed={"tie_word_embeddings": True, "decoder_bias": True},
    defaults={
        "hidden_activation": "gelu",
        "classifier_activation": "gelu",
        "norm_eps": 1e-5,
        "norm_bias": False,
        "attention_bias": False,
        "mlp_bias": False,
        "classifier_bias": False,
        "global_rope_theta": 160_000.0,
        "local_rope_theta": 10_000.0,
        "global_attn_every_n_layers": 3,
        "local_attention": 128,
    },
    special_ids={
        "pad_token_id": "pad",
        "bos_token_id": "cls",
        "eos_token_id": "sep",
        "cls_token_id": "cls",
        "sep_token_id": "sep",
    },
    beside={"span_boundary_head.safetensors": "sbo_head.", "pair_head.safetensors": "nsp_head."},
    tied={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
    model_inputs=("input_ids", "attention_mask"),
    tags=("modernbert", "masked-lm"),
)
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
