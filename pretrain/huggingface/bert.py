"""Define BERT in transformers, and the families made of its layers: its decoder, DistilBERT and ERNIE 1.0.

BERT has a head for masked words, with or without one for pairs of segments. Families in other modules take its tables
of activations, fields and names as well.
"""

from dataclasses import replace

from pretrain.config.settings import CausalSettings, RunConfig
from pretrain.huggingface.base import Config, Family, Field, Head, Part, Weight

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


# Define one-directional BERT: BertLMHeadModel, causal by `is_decoder`, without a pooler. A model that was trained from
# right to left is exported as the same class: it reads ids that are reversed, which the field `direction` of
# config.json and the card say.


_BACKWARDS = (
    "A decoder with a language-model head, trained on texts whose tokens were reversed: it reads"
    " from right to left, each token attends to itself and to what follows it in the text, and predicts the one before."
    " Reverse the ids that it is given (`input_ids.flip(-1)`, without padding) and what it returns. It has no pooler;"
    " for a vector of a text take that of its first token."
)


class Decoder(Family):
    """The family in either direction of the run."""

    def of_run(self, run: RunConfig) -> Family:
        """Return the family with the run's direction, in which the class itself cannot generate a text backwards."""
        direction = run.objective.causal.direction
        stated = replace(self, fixed={**self.fixed, "direction": direction})
        if direction == CausalSettings().direction:
            return stated
        return replace(stated, what=_BACKWARDS, pipeline="")

    def differences(self, config: Config, run: RunConfig, vocabulary_size: int) -> list[str]:
        """Describe how a config.json differs from the settings of a run that is to start from its weights, one line
        each."""
        found = super().differences(config, run, vocabulary_size)
        here, there = run.objective.causal.direction, config.get("direction", CausalSettings().direction)
        if run.objective.name == self.objective and here != there:
            found.append(f"objective.causal.direction is {here}, direction {there}")
        return found


BERT_DECODER = Decoder(
    **vars(
        replace(
            BERT_FOR_PRETRAINING,
            export_class="BertLMHeadModel",
            objective="causal",
            # without is_decoder, stated, the class attends both ways; without a cache its results are equal, but slow
            fixed={**BERT_FOR_PRETRAINING.fixed, "is_decoder": True},
            heads={"causal": Head("logits")},
            what="A decoder with the layers of BERT and a language-model head: each token attends to itself and to what"
            " is before it, and predicts the next one. It has no pooler; for a vector of a text take its last token's.",
            pipeline="text-generation",
            tags=("bert", "causal-lm"),
        )
    )
)


# Define DistilBERT: BERT's layers under other names, no segments and no pooler.


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


# Define ERNIE 1.0: BERT's tensors under another prefix, without later versions' task embeddings.


def _renamed(theirs: str | Weight | Part) -> str:
    assert isinstance(theirs, str)  # BERT stores every tensor as it is here
    return theirs.replace("bert.", "ernie.", 1)


ERNIE_FOR_PRETRAINING = replace(
    BERT_FOR_PRETRAINING,
    export_class="ErnieForPreTraining",
    model_type="ernie",
    objective="ernie",
    prefix="ernie",
    names={ours: _renamed(theirs) for ours, theirs in BERT_FOR_PRETRAINING.names.items()},
    fixed={**BERT_FOR_PRETRAINING.fixed, "use_task_id": False},
    tied={_renamed(copy): _renamed(source) for copy, source in BERT_FOR_PRETRAINING.tied.items()},
    segment_table=_renamed(BERT_FOR_PRETRAINING.segment_table),
    buffers=tuple(map(_renamed, BERT_FOR_PRETRAINING.buffers)),
    tags=("ernie", "masked-lm"),
)
