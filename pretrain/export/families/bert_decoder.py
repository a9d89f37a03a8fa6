"""Define left-to-right BERT in transformers: BertLMHeadModel, causal by `is_decoder`, without a pooler."""

from dataclasses import replace

from pretrain.export.families.base import Head
from pretrain.export.families.bert import BERT_FOR_PRETRAINING

BERT_DECODER = replace(
    BERT_FOR_PRETRAINING,
    export_class="BertLMHeadModel",
    # without is_decoder the class attends both ways; without a cache its results are equal, but slow
    fixed={**BERT_FOR_PRETRAINING.fixed, "is_decoder": True},
    heads={"causal": Head("logits")},
    what="A decoder with the layers of BERT and a language-model head: each token attends to itself and to what is"
    " before it, and predicts the next one. It has no pooler; for a vector of a text take its last token's.",
    pipeline="text-generation",
    tags=("bert", "causal-lm"),
)
