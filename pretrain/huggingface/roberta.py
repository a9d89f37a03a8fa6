"""Define RoBERTa and XLM-R in transformers: positions are numbered from the id of <pad> + 1."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from data_pipeline.shards.index import VocabularyStamp
from pretrain.config.settings import RunConfig
from pretrain.huggingface.base import Config, Family, Head, Weight
from pretrain.huggingface.bert import FIELDS, NAMES

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.model.batch import MicroBatch


def rows_before(config: Config) -> int:
    """Count the rows of the position table that no token uses: the first token has number pad + 1."""
    return int(config.get("pad_token_id", 1)) + 1


def with_rows_before(position: "Tensor", config: Config) -> "Tensor":
    """Prepend rows of zeros to our position table: (positions, H) -> (rows before + positions, H)."""
    before = rows_before(config)
    table = position.new_zeros(before + position.shape[0], position.shape[1])
    table[before:] = position
    return table


def without_rows_before(position: "Tensor", config: Config) -> "Tensor":
    """Remove the rows that `with_rows_before` adds."""
    return position[rows_before(config) :].clone()


class Roberta(Family):
    """A family whose `max_position_embeddings` also counts the rows before the first token's."""

    def config(self, run: RunConfig, vocabulary: VocabularyStamp) -> dict[str, Any]:
        """Return the fields of config.json, without class and dtype."""
        fields = super().config(run, vocabulary)
        return fields | {"max_position_embeddings": fields["max_position_embeddings"] + rows_before(fields)}

    def settings(self, config: Config) -> dict[str, Any]:
        """Return the encoder settings stated in a config.json, by name; None for those that it lacks or we do not
        have."""
        found = super().settings(config)
        rows, before = found["max_positions"], rows_before(config)
        return found | {"max_positions": None if rows is None else rows - before}

    def inputs(self, batch: "MicroBatch", pad: int) -> "dict[str, Tensor]":
        """Return the inputs of transformers' forward for a packed batch, with explicit positions if a token is <pad>
        (random replacement produces some): transformers would not count it."""
        inputs = super().inputs(batch, pad)
        if (batch.input_ids == pad).any():
            mask = inputs["attention_mask"]
            inputs["position_ids"] = mask.cumsum(1) * mask + pad
        return inputs


ROBERTA_FOR_MASKED_LM = Roberta(
    export_class="RobertaForMaskedLM",
    model_type="roberta",
    objective="roberta",
    prefix="roberta",
    what="An encoder of the BERT family with a masked-language-model head, trained as RoBERTa: without sentence pairs"
    " and segments. It has no pooler: `AutoModel` starts one at random, which fine-tuning has to train.",
    names={
        **{
            ours: theirs.replace("bert.", "roberta.", 1)
            for ours, theirs in NAMES.items()
            if "head" not in ours
        },
        "encoder.embeddings.position": Weight(
            "roberta.embeddings.position_embeddings", with_rows_before, without_rows_before
        ),
        "mlm_head.dense": "lm_head.dense",
        "mlm_head.norm": "lm_head.layer_norm",
        "mlm_head": "lm_head",  # its bias, one number per word
        "nsp_head.pooler": "roberta.pooler.dense",
    },
    heads={"mlm": Head("logits")},
    fields=FIELDS,
    fixed={"tie_word_embeddings": True, "is_decoder": False},
    defaults={"hidden_act": "gelu", "layer_norm_eps": 1e-12, "type_vocab_size": 2},
    special_ids={"pad_token_id": "pad", "bos_token_id": "cls", "eos_token_id": "sep"},
    tied={
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    written_copies=(
        "lm_head.decoder.bias",
    ),  # transformers 4.46 to 4.48 start it at 0 where it is not stored
    buffers=("roberta.embeddings.position_ids", "roberta.embeddings.token_type_ids"),
    segment_table="roberta.embeddings.token_type_embeddings.weight",
    model_inputs=("input_ids", "attention_mask"),
    tags=("roberta", "masked-lm"),
)
XLM_ROBERTA_FOR_MASKED_LM = replace(
    ROBERTA_FOR_MASKED_LM,
    export_class="XLMRobertaForMaskedLM",
    model_type="xlm-roberta",
    objective="xlmr",
    tags=("xlm-roberta", "masked-lm"),
)
