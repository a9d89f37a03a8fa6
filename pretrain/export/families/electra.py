"""Define ELECTRA in transformers: a discriminator and a generator with the same embeddings, in two folders."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pretrain.config.settings import EncoderSettings, RunConfig
from pretrain.export.families.base import Family, Head
from pretrain.export.families.bert import BERT_FOR_PRETRAINING, NAMES


def _encoder_names(ours: str) -> Mapping[str, str]:
    """Return the names of the encoder that we call `ours`, with the discriminator's embeddings."""
    shared = {
        name: theirs.replace("bert", "electra", 1)
        for name, theirs in NAMES.items()
        if name.startswith("encoder.")
    }
    return {name.replace("encoder.layers", f"{ours}.layers"): theirs for name, theirs in shared.items()} | {
        f"{ours}.projection": "electra.embeddings_project"
    }


@dataclass(frozen=True, kw_only=True)
class ElectraDiscriminator(Family):
    """A family whose config.json states the width of the embeddings, equal to the encoder's or not."""

    def encoder(self, run: RunConfig) -> EncoderSettings:
        """Return the settings of the run's encoder, with the embedding width as a number."""
        return replace(run.encoder, embedding_size=run.encoder.embedding_width)


class ElectraGenerator(ElectraDiscriminator):
    """The same as the discriminator, but smaller."""

    def encoder(self, run: RunConfig) -> EncoderSettings:
        """Return the settings of the generator's encoder."""
        return run.objective.electra.generator(run.encoder)


ELECTRA_FOR_PRETRAINING = ElectraDiscriminator(
    export_class="ElectraForPreTraining",
    folder="discriminator",
    model_type="electra",
    prefix="electra",
    what="ELECTRA's discriminator: an encoder with a head that tells for each token whether it was replaced. It is the"
    " half to fine-tune; it has no pooler, and classifiers read the vector of the first token.",
    names={
        **_encoder_names("encoder"),
        "rtd_head.dense": "discriminator_predictions.dense",
        "rtd_head.prediction": "discriminator_predictions.dense_prediction",
    },
    heads={"rtd": Head("logits")},
    left_out=("generator.", "mlm_head."),
    fields={**BERT_FOR_PRETRAINING.fields, "embedding_size": "embedding_size"},
    fixed=BERT_FOR_PRETRAINING.fixed,
    defaults=BERT_FOR_PRETRAINING.defaults,
    segment_table="electra.embeddings.token_type_embeddings.weight",
    buffers=("electra.embeddings.position_ids", "electra.embeddings.token_type_ids"),
    legacy=BERT_FOR_PRETRAINING.legacy,
    pipeline="",
    tags=("electra", "replaced-token-detection"),
)
ELECTRA_FOR_MASKED_LM = ElectraGenerator(
    **{
        **vars(ELECTRA_FOR_PRETRAINING),
        "export_class": "ElectraForMaskedLM",
        "folder": "generator",
        "what": "ELECTRA's generator: a small encoder with a masked-language-model head, which made the tokens that the"
        " discriminator learnt to detect. It shares the discriminator's embeddings; fine-tune the discriminator.",
        "names": {
            **_encoder_names("generator"),
            "mlm_head.dense": "generator_predictions.dense",
            "mlm_head.norm": "generator_predictions.LayerNorm",
            "mlm_head": "generator_lm_head",  # its bias, one number per word
        },
        "heads": {"mlm": Head("logits")},
        "left_out": ("encoder.layers.", "encoder.projection.", "rtd_head."),
        "tied": {"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"},
        "pipeline": "fill-mask",
        "tags": ("electra", "masked-lm"),
    }
)
