"""Define ALBERT in transformers: embeddings narrower than the encoder, and layers that share parameters in groups.

transformers shares whole layers only. Layers that share one half are written as groups of one layer each, with copies
of that half; when a folder is read, each layer gets the tensors of its group, and `merge_shared` keeps one copy.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_pipeline.errors import UserError
from data_pipeline.shards.index import VocabularyStamp
from pretrain.config.encoder import (
    EncoderSettings,
    first_of_group,
    group_of,
    in_layer,
    layer_and_rest,
    names_within_layers,
)
from pretrain.config.settings import RunConfig
from pretrain.huggingface.base import Config, Family, Head
from pretrain.huggingface.bert import BERT_FOR_PRETRAINING, FIELDS, NAMES

if TYPE_CHECKING:
    from torch import Tensor


_LAYER, _GROUP = "encoder.layers.{i}", "albert.encoder.albert_layer_groups.{i}.albert_layers.0"
_PROJECTION = "albert.encoder.embedding_hidden_mapping_in"


class Albert(Family):
    """A family whose layers are stored by group, and whose embeddings always pass a projection."""

    def encoder(self, run: RunConfig) -> EncoderSettings:
        """Return the settings of the run's encoder, with the embedding width as a number."""
        return replace(run.encoder, embedding_size=run.encoder.embedding_width)

    def stated(self, config: Config, beside: Mapping[str, Config]) -> dict[str, Any]:
        """Return the settings of a run that a config.json states, by dotted name: a group shares whole layers."""
        layers, groups = config.get("num_hidden_layers"), config.get("num_hidden_groups", 1)
        shared = {"encoder.sharing": "all", "encoder.groups": groups} if groups != layers else {}
        return super().stated(config, beside) | shared

    def config(self, run: RunConfig, vocabulary: VocabularyStamp) -> dict[str, Any]:
        """Return the fields of config.json, without class and dtype."""
        groups = run.encoder.groups if run.encoder.sharing == "all" else run.encoder.layers
        return super().config(run, vocabulary) | {"num_hidden_groups": groups}

    def differences(self, config: Config, run: RunConfig, vocabulary_size: int) -> list[str]:
        """Describe how a config.json differs from the settings of a run that is to start from its weights, one line
        each. Its groups may be others than the run's: whether layers that share are equal, their tensors tell."""
        groups, layers = config.get("num_hidden_groups", 1), config.get("num_hidden_layers")
        found = super().differences(config, run, vocabulary_size)
        if layers == run.encoder.layers and groups not in range(1, layers + 1):
            found.append(f"num_hidden_groups is {groups}, which must be from 1 to num_hidden_layers={layers}")
        return found

    def to_hugging_face(self, state: "Mapping[str, Tensor]", config: Config) -> "dict[str, Tensor]":
        """Convert our parameters to those of the folder: a group's tensors are those that its first layer uses. Where
        the embeddings are as wide as the encoder, the projection is the identity."""
        tensors = super().to_hugging_face(_by_group(state, config), config)
        width, hidden = config["embedding_size"], config["hidden_size"]
        if width == hidden and f"{_PROJECTION}.weight" not in tensors:
            some = next(iter(state.values()))
            identity, bias = some.new_zeros(hidden, hidden), some.new_zeros(hidden)
            identity.fill_diagonal_(1.0)
            tensors |= {f"{_PROJECTION}.weight": identity, f"{_PROJECTION}.bias": bias}
        return tensors

    def from_hugging_face(
        self, stored: "Mapping[str, Tensor]", config: Config, where: Path
    ) -> "dict[str, Tensor]":
        """Convert a folder's tensors to our parameters, float32, with the tensors of every layer: those that layers
        share come once for each.

        Raises UserError as for any family, and for a projection of embeddings that are as wide as the encoder."""
        state = super().from_hugging_face(stored, config, where)
        width, hidden = self.settings(config)["embedding_size"], config.get("hidden_size")
        if width == hidden:
            _refuse_projection(state, where)
        return _by_layer(state, config)


def _by_group(state: "Mapping[str, Tensor]", config: Config) -> "dict[str, Tensor]":
    """Rename the tensors of layers to those of groups. A tensor that a layer lacks is that of the last layer before it:
    an owner is the first of those that share."""
    layers, groups = config["num_hidden_layers"], config["num_hidden_groups"]
    found = {name: tensor for name, tensor in state.items() if layer_and_rest(name) is None}
    for rest in names_within_layers(state):
        for group in range(groups):
            first = first_of_group(group, layers, groups)
            owner = next(n for n in range(first, -1, -1) if in_layer(n, rest) in state)
            tensor = state[in_layer(owner, rest)]  # a copy where it is shared: files hold no tensor twice
            found[in_layer(group, rest)] = tensor if owner == first else tensor.clone()
    return found


def _by_layer(state: "Mapping[str, Tensor]", config: Config) -> "dict[str, Tensor]":
    """Rename the tensors of groups to those of all their layers; a group's that no layer uses stays as it is."""
    layers, groups = config["num_hidden_layers"], config.get("num_hidden_groups", 1)
    found = {name: tensor for name, tensor in state.items() if layer_and_rest(name) is None}
    for rest in names_within_layers(state):
        for layer in range(layers):
            name = in_layer(group_of(layer, layers, groups), rest)
            if name in state:
                found[in_layer(layer, rest)] = state[name]
    return found


def _refuse_projection(state: "dict[str, Tensor]", where: Path) -> None:
    """Remove the projection from `state`. Raises UserError if it changes anything."""
    weight, bias = (state.pop(f"encoder.projection.{kind}", None) for kind in ("weight", "bias"))
    if weight is None or bias is None:
        return
    identity = weight.new_zeros(weight.shape).fill_diagonal_(1.0)
    if not weight.is_meta and (not weight.equal(identity) or bias.any()):
        raise UserError(
            "projects embeddings that are as wide as the encoder",
            where=where,
            expected="embedding_hidden_mapping_in to be the identity where embedding_size is hidden_size",
        )


ALBERT_FOR_PRETRAINING = Albert(
    export_class="AlbertForPreTraining",
    model_type="albert",
    prefix="albert",
    objective="albert",
    what="An ALBERT encoder, whose layers may share their parameters, with a masked-language-model head and a head that"
    " tells whether two segments are in their order.",
    names={
        **{
            ours: theirs.replace("bert.", "albert.", 1)
            for ours, theirs in NAMES.items()
            if ours.startswith("encoder.embeddings.")
        },
        "encoder.projection": _PROJECTION,
        f"{_LAYER}.attention.query": f"{_GROUP}.attention.query",
        f"{_LAYER}.attention.key": f"{_GROUP}.attention.key",
        f"{_LAYER}.attention.value": f"{_GROUP}.attention.value",
        f"{_LAYER}.attention.output": f"{_GROUP}.attention.dense",
        f"{_LAYER}.attention_norm": f"{_GROUP}.attention.LayerNorm",
        f"{_LAYER}.feed_forward.intermediate": f"{_GROUP}.ffn",
        f"{_LAYER}.feed_forward.output": f"{_GROUP}.ffn_output",
        f"{_LAYER}.feed_forward_norm": f"{_GROUP}.full_layer_layer_norm",
        "mlm_head.dense": "predictions.dense",
        "mlm_head.norm": "predictions.LayerNorm",
        "mlm_head": "predictions",  # its bias, one number per word
        "nsp_head.pooler": "albert.pooler",
        "nsp_head.classifier": "sop_classifier.classifier",
    },
    heads={"mlm": Head("prediction_logits"), "nsp": Head("sop_logits", per_token=False)},
    fields={**FIELDS, "embedding_size": "embedding_size"},
    besides={"num_hidden_groups": int},
    fixed={"tie_word_embeddings": True, "inner_group_num": 1},
    defaults={
        "hidden_act": "gelu_new",
        "layer_norm_eps": 1e-12,
        "type_vocab_size": 2,
        "embedding_size": 128,
        "inner_group_num": 1,
    },
    special_ids={"pad_token_id": "pad", "bos_token_id": "cls", "eos_token_id": "sep"},
    tied={
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    },
    written_copies=("predictions.decoder.bias",),  # transformers 4.48 starts it at 0 where it is not stored
    segment_table="albert.embeddings.token_type_embeddings.weight",
    buffers=("albert.embeddings.position_ids", "albert.embeddings.token_type_ids"),
    legacy=BERT_FOR_PRETRAINING.legacy,
    tags=("albert", "masked-lm"),
)
