"""Define ModernBERT in transformers: norms before the halves of its layers, RoPE, and local attention.

Its config.json has keys of two generations: those of transformers 4.48, which version 5 reads too, and
`layer_types` and `rope_parameters`, which take their place there. Both are written; the newer ones decide where a
folder has both.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from data_pipeline.shards.index import VocabularyStamp
from pretrain.config.settings import RunConfig
from pretrain.export.families.bert import ACTIVATIONS, READABLE_ACTIVATIONS
from pretrain.export.families.entries import Config, Field, Head, Part
from pretrain.export.families.rotary import Rotary

_LAYER = "encoder.layers.{i}"
_LOCAL, _GLOBAL = "sliding_attention", "full_attention"


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
