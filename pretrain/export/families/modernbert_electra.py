"""Define ELECTRA with ModernBERT's layers in transformers: its discriminator is a ModernBertModel, whose head is kept
beside it, since transformers has no class with both, and its generator a ModernBertForMaskedLM.

Neither class has a projection between embeddings and layers: a generator that is narrower than the discriminator needs
embeddings of its own.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pretrain.config.encoder import EncoderSettings
from pretrain.export.families.electra import (
    EMBEDDINGS,
    LEFT_OUT_OF_DISCRIMINATOR,
    LEFT_OUT_OF_GENERATOR,
    OF_GENERATOR,
    Discriminator,
    Generator,
    of_generator,
)
from pretrain.export.families.entries import Head, Part, Weight
from pretrain.export.families.modernbert import MODERNBERT_FOR_MASKED_LM, ModernBert

if TYPE_CHECKING:
    import transformers

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

    def completed(
        self, model: "transformers.PreTrainedModel", folder: Path
    ) -> "transformers.PreTrainedModel":
        """Return the model with the head beside it."""
        from pretrain.export.families.token_head import WithTokenHead

        return WithTokenHead(model, folder / HEAD_FILE, HEAD)  # type: ignore[return-value]


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
