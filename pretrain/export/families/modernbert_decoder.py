"""Define one-directional ModernBERT in transformers: ModernBertDecoderForCausalLM (Ettin's decoders are such).

Its `local_attention` counts otherwise than ModernBERT's: half of it is how many tokens a token sees, itself among
them, so that what we call a window of 128 (64 before it, and itself) is its 130.
"""

from dataclasses import replace

from pretrain.export.families.bert_decoder import BERT_DECODER, Decoder
from pretrain.export.families.entries import Field
from pretrain.export.families.modernbert import MODERNBERT_FOR_MASKED_LM, ModernBert


class ModernBertDecoder(Decoder, ModernBert):
    """A ModernBERT in which a token sees what is before it."""


def _to_window(local_attention: int) -> int:
    return local_attention + 2


def _from_window(local_attention: int) -> int | None:
    return local_attention - 2 if local_attention and local_attention >= 4 else None


_LAYER = "encoder.layers.{i}"
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
