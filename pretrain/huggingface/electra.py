"""Define ELECTRA in transformers: a discriminator and a generator, in two folders.

Each folder has whole embeddings, whatever the two share in training (objective.electra.embeddings), which config.json
states as `electra_embeddings`: without it they are shared, as in the published models.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from data_pipeline.errors import UserError
from pretrain.config.encoder import ElectraSettings, EncoderSettings
from pretrain.config.settings import RunConfig
from pretrain.huggingface.base import Config, Family, Head
from pretrain.huggingface.bert import BERT_FOR_PRETRAINING, NAMES

if TYPE_CHECKING:
    from torch import Tensor


EMBEDDINGS = "electra_embeddings"
OF_DISCRIMINATOR, OF_GENERATOR = "encoder.embeddings.", "generator.embeddings."
"""Prefixes of our names; shared embeddings have the first one."""
DELTA = ".delta.weight"
"""Ending of our name of a table that is added to the generator's."""


def of_generator(names: Mapping[str, Any], ours: str = "generator") -> dict[str, Any]:
    """Return a table of an encoder's names for the layers of the encoder that we call `ours`."""
    return {name.replace("encoder.", f"{ours}.", 1): theirs for name, theirs in names.items()}


def with_shared_embeddings(names: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table of the generator's names where its embeddings are the discriminator's."""
    return {name.replace(OF_GENERATOR, OF_DISCRIMINATOR): theirs for name, theirs in names.items()}


def added_up(state: "Mapping[str, Tensor]") -> "dict[str, Tensor]":
    """Return our parameters with the whole tables of the discriminator in place of what it adds to the generator's."""
    whole = {}
    for name, tensor in state.items():
        if name.endswith(DELTA):
            name = name.removesuffix(DELTA) + ".weight"
            tensor = state[name.replace(OF_DISCRIMINATOR, OF_GENERATOR)] + tensor
        whole[name] = tensor
    return whole


def taken_apart(state: "Mapping[str, Tensor]", deltas: Iterable[str]) -> "dict[str, Tensor]":
    """Return our parameters with the tables `deltas`, by our names, in place of the discriminator's whole ones: the
    reverse of `added_up`. Where the generator has none, its table is the discriminator's, and nothing is added."""
    parts = dict(state)
    for name in deltas:
        whole = name.removesuffix(DELTA) + ".weight"
        if whole in parts:
            base = parts.setdefault(whole.replace(OF_DISCRIMINATOR, OF_GENERATOR), parts[whole])
            parts[name] = parts.pop(whole) - base
    return parts


class OfElectra(Family):
    """A family of one of the two models, whose config.json states how the embeddings are shared."""

    def config(self, run: RunConfig, vocabulary: Any) -> dict[str, Any]:
        """Return the fields of config.json, without class and dtype."""
        return super().config(run, vocabulary) | {EMBEDDINGS: run.objective.electra.embeddings}


class Discriminator(OfElectra):
    """A family of the discriminator: its folder states the settings of both."""

    generator: ClassVar[str]
    """Name of the generator's family."""

    def stated(self, config: Config, beside: Mapping[str, Config]) -> dict[str, Any]:
        """Return the settings of a run that a config.json states, by dotted name; with the generator's folder beside,
        its sizes as well."""
        found = super().stated(config, beside)
        found["objective.electra.embeddings"] = config.get(EMBEDDINGS, ElectraSettings().embeddings)
        generator = beside.get(self.generator, {})
        if config.get("hidden_size") and generator.get("hidden_size"):
            share = generator["hidden_size"] / config["hidden_size"]
            found["objective.electra.generator_share"] = share
        layers = generator.get("num_hidden_layers", config.get("num_hidden_layers"))
        if layers != config.get("num_hidden_layers"):
            found["objective.electra.generator_layers"] = layers
        return found

    def to_hugging_face(self, state: "Mapping[str, Tensor]", config: Config) -> "dict[str, Tensor]":
        """Convert our parameters, without vocabulary padding, to those that the folder holds."""
        return super().to_hugging_face(added_up(state), config)


class Generator(OfElectra):
    """A family of the generator, smaller than the discriminator."""

    discriminator: ClassVar[str]
    """Name of the discriminator's family."""

    def stated(self, config: Config, beside: Mapping[str, Config]) -> dict[str, Any]:
        """Return nothing: the discriminator's folder states the settings of a run. Raises UserError without one."""
        if self.discriminator not in beside:
            raise UserError(
                "is ELECTRA's generator alone",
                where="init_from",
                expected="the discriminator, or a folder with both: discriminator/ and generator/",
            )
        return {}

    def encoder(self, run: RunConfig) -> EncoderSettings:
        """Return the settings of the generator's encoder, with the embedding width as a number."""
        encoder = run.objective.electra.generator(run.encoder)
        return replace(encoder, embedding_size=encoder.embedding_width)

    def of_run(self, run: RunConfig) -> Self:
        """Return the family with the names of the run's embeddings, its own or the discriminator's."""
        if run.objective.electra.embeddings != ElectraSettings().embeddings:
            return self
        left_out = tuple(name for name in self.left_out if name != OF_DISCRIMINATOR)
        names = with_shared_embeddings(self.names)
        positions = self.positions.replace(OF_GENERATOR, OF_DISCRIMINATOR)
        return replace(self, names=names, left_out=left_out, positions=positions)


LEFT_OUT_OF_DISCRIMINATOR = ("generator.", "mlm_head.")
LEFT_OUT_OF_GENERATOR = (
    *(OF_DISCRIMINATOR, "encoder.layers.", "encoder.projection.", "encoder.final_norm."),
    "rtd_head.",
)


class ElectraDiscriminator(Discriminator):
    """ELECTRA's discriminator, whose config.json states the width of the embeddings, equal to the encoder's or not."""

    generator: ClassVar[str] = "ElectraForMaskedLM"

    def encoder(self, run: RunConfig) -> EncoderSettings:
        """Return the settings of the run's encoder, with the embedding width as a number."""
        return replace(run.encoder, embedding_size=run.encoder.embedding_width)


class ElectraGenerator(Generator):
    """ELECTRA's generator."""

    discriminator: ClassVar[str] = "ElectraForPreTraining"


_NAMES = {
    **{
        name: theirs.replace("bert", "electra", 1)
        for name, theirs in NAMES.items()
        if name.startswith("encoder.")
    },
    "encoder.projection": "electra.embeddings_project",
}
ELECTRA_FOR_PRETRAINING = ElectraDiscriminator(
    export_class="ElectraForPreTraining",
    folder="discriminator",
    model_type="electra",
    objective="electra",
    prefix="electra",
    what="ELECTRA's discriminator: an encoder with a head that tells for each token whether it was replaced. It is the"
    " half to fine-tune; it has no pooler, and classifiers read the vector of the first token.",
    names={
        **_NAMES,
        "rtd_head.dense": "discriminator_predictions.dense",
        "rtd_head.prediction": "discriminator_predictions.dense_prediction",
    },
    heads={"rtd": Head("logits")},
    left_out=LEFT_OUT_OF_DISCRIMINATOR,
    fields={**BERT_FOR_PRETRAINING.fields, "embedding_size": "embedding_size"},
    fixed=BERT_FOR_PRETRAINING.fixed,
    besides={EMBEDDINGS: str},
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
        " discriminator learnt to detect. Fine-tune the discriminator.",
        "names": {
            **of_generator(_NAMES),
            "mlm_head.dense": "generator_predictions.dense",
            "mlm_head.norm": "generator_predictions.LayerNorm",
            "mlm_head": "generator_lm_head",  # its bias, one number per word
        },
        "heads": {"mlm": Head("logits")},
        "left_out": LEFT_OUT_OF_GENERATOR,
        "positions": f"{OF_GENERATOR}position.weight",
        "tied": {"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"},
        "pipeline": "fill-mask",
        "tags": ("electra", "masked-lm"),
    }
)
