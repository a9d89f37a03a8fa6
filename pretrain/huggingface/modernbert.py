"""Define ModernBERT in transformers, and the families made of its layers: its decoder, and ELECTRA's two models.

ModernBERT has norms before the halves of its layers, RoPE, and local attention.

Its config.json has keys of two generations: those of transformers 4.48, which version 5 reads too, and
`layer_types` and `rope_parameters`, which take their place there. Both are written; the newer ones decide where a
folder has both.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from data_pipeline.shards.index import VocabularyStamp
from pretrain.config.encoder import EncoderSettings
from pretrain.config.settings import RunConfig
from pretrain.huggingface.base import Config, Field, Head, Part, Rotary, Weight
from pretrain.huggingface.bert import ACTIVATIONS, BERT_DECODER, READABLE_ACTIVATIONS, Decoder
from pretrain.huggingface.electra import (
    EMBEDDINGS,
    LEFT_OUT_OF_DISCRIMINATOR,
    LEFT_OUT_OF_GENERATOR,
    OF_GENERATOR,
    Discriminator,
    Generator,
    of_generator,
)

if TYPE_CHECKING:
    pass


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


# Define one-directional ModernBERT: ModernBertDecoderForCausalLM (Ettin's decoders are such). Its `local_attention`
# counts otherwise than ModernBERT's: half of it is how many tokens a token sees, itself among them, so that what we
# call a window of 128 (64 before it, and itself) is its 130.


class ModernBertDecoder(Decoder, ModernBert):
    """A ModernBERT in which a token sees what is before it."""


def _to_window(local_attention: int) -> int:
    return local_attention + 2


def _from_window(local_attention: int) -> int | None:
    return local_attention - 2 if local_attention and local_attention >= 4 else None


_ATTENTION = {
    f"{_LAYER}.attention.{ours}": f"model.layers.{{i}}.attn.{theirs}"
    for ours, theirs in (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj"))
}
MODERNBERT_DECODER = ModernBertDecoder(
    **vars(
        replace(
            MODERNBERT_FOR_MASKED_LM,
            export_class="ModernBertDecoderForCausalLM",
            model_type="modernbert-decoder",
            objective="causal",
            what="A decoder with the layers of ModernBERT and a language-model head: each token attends to itself and"
            " to what is before it, and predicts the next one. It has no pooler; for a vector of a text take its last"
            " token's.",
            names={
                **MODERNBERT_FOR_MASKED_LM.names,
                **_ATTENTION,
                "mlm_head.dense": "lm_head.dense",
                "mlm_head.norm": "lm_head.norm",
            },
            heads=BERT_DECODER.heads,
            fields={
                **MODERNBERT_FOR_MASKED_LM.fields,
                "local_attention": Field("local_attention", _to_window, _from_window),
            },
            fixed={**MODERNBERT_FOR_MASKED_LM.fixed, "is_decoder": True},
            beside={},
            pipeline=BERT_DECODER.pipeline,
            tags=("modernbert", "causal-lm"),
        )
    )
)


# Define ELECTRA with ModernBERT's layers. Its discriminator is a ModernBertModel, whose head is kept beside it, since
# transformers has no class with both; its generator is a ModernBertForMaskedLM. Neither class has a projection between
# embeddings and layers: a generator that is narrower than the discriminator needs embeddings of its own.


MARK = "electra_part"
"""Field of config.json that tells the two models from others of their classes."""
HEAD_FILE, HEAD = "replaced_token_head.safetensors", "rtd_head."


def projected(encoder: EncoderSettings, name: str) -> list[str]:
    """Describe embeddings of another width than the layers, which ModernBERT lacks, in a line."""
    width, hidden = encoder.embedding_width, encoder.hidden
    told = f"embeddings are {width} wide, {name}'s {hidden} as its layers"
    remedy = "no encoder.embedding_size, and objective.electra.generator_share=1 (generator_layers makes a generator"
    return [] if width == hidden else [f"{told}: {remedy} smaller) or objective.electra.embeddings=separate"]


class ModernBertDiscriminator(Discriminator, ModernBert):
    """A ModernBERT that detects replaced tokens."""

    generator: ClassVar[str] = "ModernBertForMaskedLM of ELECTRA"

    def inexpressible(self, encoder: EncoderSettings) -> list[str]:
        """Describe the settings of an encoder that no model of the class has, one line each."""
        return super().inexpressible(encoder) + projected(encoder, "the discriminator")


class ModernBertGenerator(Generator, ModernBert):
    """A ModernBERT that fills in masked tokens; the activation of its head is GELU whatever its layers have."""

    discriminator: ClassVar[str] = "ModernBertModel of ELECTRA"
    also: ClassVar[Mapping[str, tuple[str, ...]]] = {"attention_bias": ("mlp_bias", "classifier_bias")}

    def inexpressible(self, encoder: EncoderSettings) -> list[str]:
        """Describe the settings of an encoder that no model of the class has, one line each."""
        return super().inexpressible(encoder) + projected(encoder, "the generator")


def _bare(entry: str | Weight | Part) -> str | Weight | Part:
    """Return their name without its first part, as files of an encoder without heads have it."""
    if isinstance(entry, str):
        return entry.removeprefix("model.")
    return entry._replace(name=entry.name.removeprefix("model."))


_NAMES = {
    name: entry for name, entry in MODERNBERT_FOR_MASKED_LM.names.items() if name.startswith("encoder.")
}
_HEAD_NAMES = {name: entry for name, entry in MODERNBERT_FOR_MASKED_LM.names.items() if name not in _NAMES}
_SHARED = {name: value for name, value in vars(MODERNBERT_FOR_MASKED_LM).items() if name != "beside"}
MODERNBERT_DISCRIMINATOR = ModernBertDiscriminator(
    **{
        **_SHARED,
        "export_class": "ModernBertModel",
        "variant": "ELECTRA",
        "marks": {MARK: "discriminator"},
        "folder": "discriminator",
        "objective": "electra",
        "prefix": "",
        "what": "ELECTRA's discriminator with the layers of ModernBERT: an encoder, trained to tell for each token"
        f" whether it was replaced. The head that tells it is in `{HEAD_FILE}`: Linear, activation, Linear. It is the"
        " half to fine-tune; it has no pooler, and classifiers read the vector of the first token.",
        "names": {name: _bare(entry) for name, entry in _NAMES.items()},
        "heads": {"hidden": Head("last_hidden_state"), "rtd": Head("logits")},
        "left_out": LEFT_OUT_OF_DISCRIMINATOR,
        "fixed": {"tie_word_embeddings": True},
        "besides": {EMBEDDINGS: str},
        "beside": {HEAD_FILE: HEAD},
        "token_head": HEAD_FILE,
        "tied": {},
        "pipeline": "",
        "tags": ("modernbert", "electra", "replaced-token-detection"),
    }
)
MODERNBERT_GENERATOR = ModernBertGenerator(
    **{
        **_SHARED,
        "variant": "ELECTRA",
        "marks": {MARK: "generator"},
        "folder": "generator",
        "objective": "electra",
        "what": "ELECTRA's generator with the layers of ModernBERT: a small encoder with a masked-language-model head,"
        " which made the tokens that the discriminator learnt to detect. Fine-tune the discriminator.",
        "names": of_generator(_NAMES) | _HEAD_NAMES,
        "fixed": {**MODERNBERT_FOR_MASKED_LM.fixed, "classifier_activation": "gelu"},
        "left_out": LEFT_OUT_OF_GENERATOR,
        "positions": f"{OF_GENERATOR}position.weight",
        "tags": ("modernbert", "electra", "masked-lm"),
    }
)
