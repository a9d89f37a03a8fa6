"""Define BERT's families in transformers: a head for masked words, with or without one for pairs of segments."""

from dataclasses import replace

from pretrain.export.families.base import Family
from pretrain.export.families.entries import Field, Head

ACTIVATIONS = {"gelu_tanh": "gelu_pytorch_tanh", "gelu": "gelu", "relu": "relu", "silu": "silu"}
"""Our activation -> `hidden_act`. Of the tanh forms, this one calls the same kernel as ours."""
READABLE_ACTIVATIONS = {theirs: ours for ours, theirs in ACTIVATIONS.items()} | {
    **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_accurate", "gelu_python_tanh"), "gelu_tanh"),
    "gelu_python": "gelu",
    "swish": "silu",
}
"""With further names of the same functions."""


def _rows(segments: int) -> int:
    return segments or 1  # transformers needs a table


def _segments(rows: int) -> int:
    return 0 if rows == 1 else rows  # one row carries no information


FIELDS: dict[str, str | Field] = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "intermediate": "intermediate_size",
    "activation": Field("hidden_act", ACTIVATIONS.__getitem__, READABLE_ACTIVATIONS.get),
    "max_positions": "max_position_embeddings",
    "segments": Field("type_vocab_size", _rows, _segments),
    "layer_norm_eps": "layer_norm_eps",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "initializer_range": "initializer_range",
}

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
    "mlm_head": "cls.predictions",  # its bias, one number per word
    "nsp_head.pooler": "bert.pooler.dense",
    "nsp_head.classifier": "cls.seq_relationship",
}
"""One table for all classes of BERT: files of bert-base-uncased name BertForMaskedLM and also hold the pooler."""

BERT_FOR_PRETRAINING = Family(
    export_class="BertForPreTraining",
    model_type="bert",
    prefix="bert",
    what="An encoder of the BERT family with a masked-language-model head and a head that tells whether two segments"
    " follow one another.",
    objective="bert",
    names=NAMES,
    heads={"mlm": Head("prediction_logits"), "nsp": Head("seq_relationship_logits", per_token=False)},
    fields=FIELDS,
    fixed={"tie_word_embeddings": True, "is_decoder": False},  # a decoder's tokens see none behind them
    defaults={"hidden_act": "gelu", "layer_norm_eps": 1e-12, "type_vocab_size": 2, "is_decoder": False},
    tied={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    segment_table="bert.embeddings.token_type_embeddings.weight",
    buffers=("bert.embeddings.position_ids", "bert.embeddings.token_type_ids"),
    legacy={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
    tags=("bert", "masked-lm"),
)
BERT_FOR_MASKED_LM = replace(
    BERT_FOR_PRETRAINING,
    export_class="BertForMaskedLM",
    what="An encoder of the BERT family with a masked-language-model head. It was trained without sentence pairs, so it"
    " has no pooler: `AutoModel` starts one at random, which fine-tuning has to train.",
    objective="mlm",
    heads={"mlm": Head("logits")},
    beside={"span_boundary_head.safetensors": "sbo_head."},
)
