"""Define DistilBERT in transformers: BERT's layers under other names, no segments and no pooler."""

from pretrain.export.families.base import Family
from pretrain.export.families.bert import ACTIVATIONS, READABLE_ACTIVATIONS
from pretrain.export.families.entries import Field, Head

_LAYER, _THEIR_LAYER = "encoder.layers.{i}", "distilbert.transformer.layer.{i}"


DISTILBERT_FOR_MASKED_LM = Family(
    export_class="DistilBertForMaskedLM",
    model_type="distilbert",
    prefix="distilbert",
    what="An encoder of the BERT family with a masked-language-model head, distilled from one with more layers. It has"
    " neither segments nor a pooler.",
    names={
        "encoder.embeddings.word": "distilbert.embeddings.word_embeddings",
        "encoder.embeddings.position": "distilbert.embeddings.position_embeddings",
        "encoder.embeddings.norm": "distilbert.embeddings.LayerNorm",
        f"{_LAYER}.attention.query": f"{_THEIR_LAYER}.attention.q_lin",
        f"{_LAYER}.attention.key": f"{_THEIR_LAYER}.attention.k_lin",
        f"{_LAYER}.attention.value": f"{_THEIR_LAYER}.attention.v_lin",
        f"{_LAYER}.attention.output": f"{_THEIR_LAYER}.attention.out_lin",
        f"{_LAYER}.attention_norm": f"{_THEIR_LAYER}.sa_layer_norm",
        f"{_LAYER}.feed_forward.intermediate": f"{_THEIR_LAYER}.ffn.lin1",
        f"{_LAYER}.feed_forward.output": f"{_THEIR_LAYER}.ffn.lin2",
        f"{_LAYER}.feed_forward_norm": f"{_THEIR_LAYER}.output_layer_norm",
        "mlm_head.dense": "vocab_transform",
        "mlm_head.norm": "vocab_layer_norm",
        "mlm_head": "vocab_projector",  # its bias, one number per word
    },
    heads={"mlm": Head("logits")},
    fields={
        "layers": "n_layers",
        "hidden": "dim",
        "heads": "n_heads",
        "intermediate": "hidden_dim",
        "activation": Field("activation", ACTIVATIONS.__getitem__, READABLE_ACTIVATIONS.get),
        "max_positions": "max_position_embeddings",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "initializer_range": "initializer_range",
    },
    implied={"segments": 0, "layer_norm_eps": 1e-12},  # the class itself has the epsilon
    fixed={"sinusoidal_pos_embds": False, "tie_word_embeddings": True},
    tied={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
    buffers=("distilbert.embeddings.position_ids",),
    model_inputs=("input_ids", "attention_mask"),
    tags=("distilbert", "masked-lm"),
)
