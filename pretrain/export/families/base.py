"""Define a Hugging Face family: its config in both directions, its weights, and how its logits are computed.

Does not import torch, so that a folder's config.json can be checked before any rank starts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_pipeline.shards.index import VocabularyStamp
from pretrain.config.encoder import SWITCHES, EncoderSettings
from pretrain.config.settings import RunConfig
from pretrain.export.families.entries import Config, Field, Head, field_of
from pretrain.export.families.weight_names import WeightNames

if TYPE_CHECKING:
    import transformers
    from torch import Tensor

    from pretrain.model.batch import MicroBatch

UNCHECKED = ("dropout", "attention_dropout", "initializer_range")
"""Training settings that a run may change from the model that it starts from."""
MAY_GROW = ("max_positions",)
"""Sizes in which a run's encoder may be above the model that it starts from."""
MAY_CHANGE = ("rope_theta", "local_rope_theta")
"""Settings without weights that a run may change from a model that states them: a larger base of RoPE reads longer
texts."""


@dataclass(frozen=True, kw_only=True)
class Family(WeightNames):
    """One model class of transformers, as data. A family that needs more than the tables express (a tensor added,
    copied or folded into another, its own inputs) is a subclass that overrides the method concerned."""

    variant: str = ""
    """What tells the family from another one of its class."""
    marks: Config = field(default_factory=dict)
    """Fields of config.json that only folders of such a variant have."""
    model_type: str
    """Value of `model_type` in config.json."""
    what: str
    """A sentence for the card that describes the model."""
    objective: str = "mlm"
    """What a run that starts from such a folder learns, unless objective.name is set."""
    heads: Mapping[str, Head]
    """Our heads, by their names in `Model.logits`, whose logits an export is compared on."""
    fields: Mapping[str, str | Field]
    """Encoder settings -> fields of config.json."""
    implied: Mapping[str, Any] = field(default_factory=dict)
    """Encoder settings without a field -> the value that every model of the class has; of SWITCHES, those that are in
    neither have their defaults."""
    fixed: Config = field(default_factory=dict)
    """Fields that are the same for every model of the family."""
    defaults: Config = field(default_factory=dict)
    """Values of fields that an older config.json may lack."""
    besides: Mapping[str, type] = field(default_factory=dict)
    """Fields that `stated` reads besides -> what they hold."""
    special_ids: Mapping[str, str] = field(default_factory=lambda: {"pad_token_id": "pad"})
    """Fields with a special id -> its role in a vocabulary."""
    model_inputs: tuple[str, ...] = ("input_ids", "token_type_ids", "attention_mask")
    """The inputs that its tokenizer returns and its forward takes."""
    cls_last: bool = False
    """Whether its tokenizer puts [CLS] behind the text, in a segment of its own, and pads on the left."""
    folder: str = ""
    """Name of its folder where an objective exports several."""
    pipeline: str = "fill-mask"
    """The pipeline of transformers that the card shows; empty: none."""
    tags: tuple[str, ...] = ()
    """Of the model's page on the hub."""

    @property
    def name(self) -> str:
        """Its name in the registry."""
        return f"{self.export_class} of {self.variant}" if self.variant else self.export_class

    def of_run(self, run: RunConfig) -> "Family":
        """Return the family as it is for the models of this run."""
        return self

    def encoder(self, run: RunConfig) -> EncoderSettings:
        """Return the settings of the encoder that the folder holds."""
        return run.encoder

    def config(self, run: RunConfig, vocabulary: VocabularyStamp) -> dict[str, Any]:
        """Return the fields of config.json, without class and dtype."""
        encoder = self.encoder(run)
        fields = {ours: field_of(entry) for ours, entry in self.fields.items()}
        return {
            **{entry.name: entry.to(getattr(encoder, ours)) for ours, entry in fields.items()},
            "vocab_size": vocabulary.size,
            **{name: getattr(vocabulary, role) for name, role in self.special_ids.items()},
            **self.fixed,
            **self.marks,
        }

    def settings(self, config: Config) -> dict[str, Any]:
        """Return the encoder settings stated in a config.json, by name; None for those that it lacks or we do not
        have."""
        known = {**self.defaults, **config}
        fields = {ours: field_of(entry) for ours, entry in self.fields.items()}
        return {
            **self.implied,
            **{
                ours: entry.back(known[entry.name]) if entry.name in known else None
                for ours, entry in fields.items()
            },
        }

    def stated(self, config: Config, beside: Mapping[str, Config]) -> dict[str, Any]:
        """Return the settings of a run that a config.json states, by dotted name; None for a value that we do not have.
        `beside`: the config.json of each model of the folder, by its family's class."""
        found = self.settings(config)
        if found.get("embedding_size") == found.get("hidden"):
            found.pop("embedding_size", None)  # 0 is as wide
        return {f"encoder.{name}": value for name, value in found.items() if self._states(name, config)}

    def stored_layers(self, config: Config) -> int:
        """Return how many layers a folder with this config.json holds."""
        return int(self.settings(config)["layers"])

    def field_name(self, setting: str) -> str:
        """Return the field of config.json of an encoder setting."""
        return field_of(self.fields[setting]).name

    def _states(self, name: str, config: Config) -> bool:
        """Return whether a config.json, or what its class fixes, states the encoder setting `name`."""
        return name not in self.fields or field_of(self.fields[name]).name in {**self.defaults, **config}

    def inexpressible(self, encoder: EncoderSettings) -> list[str]:
        """Describe the settings of an encoder that no model of the class has, one line each."""
        default = EncoderSettings()
        wanted = {name: getattr(default, name) for name in SWITCHES} | dict(self.implied)
        found = encoder.in_use
        return [
            f"encoder.{name} is {getattr(found, name)}, {self.export_class} has {value}"
            for name, value in wanted.items()
            if name not in self.fields and getattr(found, name) != value
        ]

    def differences(self, config: Config, run: RunConfig, vocabulary_size: int) -> list[str]:
        """Describe how a config.json differs from the settings of a run that is to start from its weights, one line
        each."""
        encoder, theirs, known = self.encoder(run), self.settings(config), {**self.defaults, **config}
        found = [
            f"encoder.{ours} is {getattr(encoder, ours)}, {field_of(entry).name} {config.get(field_of(entry).name)}"
            for ours, entry in self.fields.items()
            if ours not in UNCHECKED and _differs(ours, theirs[ours], getattr(encoder, ours))
        ]
        if config.get("vocab_size") != vocabulary_size:
            found.append(
                f"the vocabulary has {vocabulary_size} entries, vocab_size is {config.get('vocab_size')}"
            )
        found += self.inexpressible(encoder)
        return found + [
            f"{name} is {known[name]}, which must be {value}"
            for name, value in self.fixed.items()
            if known.get(name, value) != value
        ]

    def inputs(self, batch: "MicroBatch", pad: int) -> "dict[str, Tensor]":
        """Return the inputs of transformers' forward for a packed batch: its examples padded on the right with the id
        `pad`."""
        example, position = batch.example_index, batch.positions
        shape = (len(batch.lengths), max(batch.lengths))
        columns = {
            "input_ids": batch.input_ids.new_full(shape, pad),
            "token_type_ids": batch.input_ids.new_zeros(shape),
            "attention_mask": batch.input_ids.new_zeros(shape),
        }
        columns["input_ids"][example, position] = batch.input_ids
        columns["token_type_ids"][example, position] = batch.segment_ids
        columns["attention_mask"][example, position] = 1
        return {name: columns[name] for name in self.model_inputs}

    def completed(
        self, model: "transformers.PreTrainedModel", folder: Path
    ) -> "transformers.PreTrainedModel":
        """Return the model that was loaded from a folder, with what `logits` needs besides from files beside it."""
        return model

    def logits(
        self, model: "transformers.PreTrainedModel", batch: "MicroBatch", pad: int
    ) -> "dict[str, Tensor]":
        """Compute their logits for a packed batch by the names of our heads: (tokens, ...) or (examples, ...)."""
        example, position = batch.example_index, batch.positions
        out = model(**self.inputs(batch, pad))
        return {
            name: out[head.output][example, position] if head.per_token else out[head.output]
            for name, head in self.heads.items()
        }


def _differs(name: str, theirs: Any, ours: Any) -> bool:
    """Return whether a run cannot start from a model with another value of this encoder setting."""
    grown = name in MAY_GROW and isinstance(theirs, int) and theirs < ours
    changed = name in MAY_CHANGE and theirs is not None
    return theirs != ours and not grown and not changed
