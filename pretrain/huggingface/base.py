"""Define a Hugging Face family: its config and its weights in both directions, and how its logits are computed.

A family is one model class of transformers, as tables: our settings beside the fields of config.json, our parameters
beside its tensors.

torch is imported only where logits are computed, so that a folder's config.json can be checked before any rank starts.
The conversion of weights only calls methods of the given tensors.
"""

import re
import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from data_pipeline.errors import UserError
from data_pipeline.shards.index import VocabularyStamp
from pretrain.config.encoder import MAY_CHANGE, MAY_GROW, SWITCHES, TRAINING_ONLY, EncoderSettings
from pretrain.config.settings import RunConfig

if TYPE_CHECKING:
    import transformers
    from torch import Tensor

    from pretrain.model.batch import MicroBatch


# Define the entries of a family's tables, and match the names of parameters by them, both ways.


Config = Mapping[str, Any]
"""The fields of a config.json."""


class Field(NamedTuple):
    """A field of config.json whose value differs from our setting's."""

    name: str
    to: Callable[[Any], Any]
    """Our value -> theirs."""
    back: Callable[[Any], Any]
    """Their value -> ours; None if we have none."""


class Weight(NamedTuple):
    """A tensor that is stored in another form than ours: with more rows, or another order of its dimensions."""

    name: str
    to: Callable[["Tensor", Config], "Tensor"]
    back: Callable[["Tensor", Config], "Tensor"]

    @property
    def same(self) -> bool:
        """Whether it is stored in our form after all."""
        return self.back is _same


class Part(NamedTuple):
    """A tensor that is stored as some of the rows of another one: equal parts, one below the other."""

    name: str
    number: int
    """Which part it is, from 0."""
    parts: int


class Head(NamedTuple):
    """The output of transformers' model that holds the logits of one of our heads."""

    output: str
    per_token: bool = True
    """Shaped (examples, longest, ...), one row per token; False: (examples, ...)."""


def field_of(entry: str | Field) -> Field:
    """Return the entry as a Field; a name alone has the same value on both sides."""
    return entry if isinstance(entry, Field) else Field(entry, _same, _same)


def weight_of(entry: str | Weight | Part) -> Weight | Part:
    """Return the entry as a Weight or Part; a name alone is a tensor of the same form on both sides."""
    return Weight(entry, _same, _same) if isinstance(entry, str) else entry


def _same(value: Any, _: object = None) -> Any:
    return value


def matched(pattern: str, name: str) -> dict[str, str] | None:
    """Return the numbers in `name`, and its ending if `pattern` covers both; None if they do not match."""
    found = _compiled(pattern).fullmatch(name)
    return {key: value or "" for key, value in found.groupdict().items()} if found else None


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    core = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>\\d+)", re.escape(pattern))
    return re.compile(core + r"(?P<kind>\.weight|\.bias)?")


def equal(one: "Tensor", other: "Tensor") -> bool:
    """Return whether two tensors are equal; of those on the meta device, which have no values, whether they can be."""
    return one.shape == other.shape and (one.is_meta or one.equal(other))


# Convert tensors between our names and those of a class of transformers, in both directions.


POSITIONS = "encoder.embeddings.position.weight"


@dataclass(frozen=True, kw_only=True)
class WeightNames:
    """The parameters of a class of transformers, as data."""

    export_class: str
    """The class of transformers that loads an export."""
    prefix: str
    """First part of the names of encoder weights, which files of an encoder without heads lack."""
    names: Mapping[str, str | Weight | Part]
    """Our parameters -> theirs, with a letter in braces for each number. A name without .weight or .bias stands for
    both."""
    left_out: tuple[str, ...] = ()
    """Prefixes of our names that this folder does not hold: heads that the class lacks, parts in another folder."""
    beside: Mapping[str, str] = field(default_factory=dict)
    """Files beside the model, for heads that the class lacks -> the prefix of our names of such a head, under which the
    file holds it."""
    token_head: str = ""
    """Of `beside`, the file of a head with one logit for each token, which is compared too: Linear, the model's
    activation, Linear."""
    tied: Mapping[str, str] = field(default_factory=dict)
    """Copies -> the tensors they are copies of. Copies are read and compared, and not written: if both are present and
    different, transformers leaves them untied without a warning."""
    written_copies: tuple[str, ...] = ()
    """Copies that are written all the same, since some version of transformers reads the copy alone."""
    positions: str = POSITIONS
    """Our name of the table of positions."""
    buffers: tuple[str, ...] = ()
    """Names in files that are not parameters."""
    legacy: Mapping[str, str] = field(default_factory=dict)
    """Parts of names in older files -> their current names."""
    segment_table: str = ""
    """Their segment table. A single row adds the same to every token: it is written, as zeros, if an encoder has no
    segments, and when read it is added to the position table."""

    def their_name(self, name: str) -> str:
        """Return their name of our parameter `name`. Raises KeyError if the folder has no place for it."""
        return self._to(name)[0]

    def to_hugging_face(self, state: "Mapping[str, Tensor]", config: Config) -> "dict[str, Tensor]":
        """Convert our parameters, without vocabulary padding, to those that the folder holds, without omitted heads
        and tied copies but `written_copies`. `config`: the folder's. Raises UserError for a parameter without a
        place."""
        tensors: dict[str, Tensor] = {}
        parts: dict[str, dict[int, Tensor]] = {}
        for ours, tensor in state.items():
            if ours.startswith((*self.left_out, *self.beside.values())):
                continue
            try:
                theirs, weight = self._to(ours)
            except KeyError:
                raise UserError(
                    f"{self.export_class} has no place for {ours}",
                    where="export",
                    expected="a model of the kind of its family",
                    remedy="such settings of the encoder cannot be exported to this class",
                ) from None
            if isinstance(weight, Part):
                parts.setdefault(theirs, {})[weight.number] = tensor
            else:
                tensors[theirs] = weight.to(tensor, config)
        for theirs, found in parts.items():
            ordered = [found[number] for number in sorted(found)]
            rows = sum(len(tensor) for tensor in ordered)
            joined = ordered[0].new_empty(rows, *ordered[0].shape[1:])
            for number, tensor in enumerate(ordered):
                joined[number * len(tensor) : (number + 1) * len(tensor)] = tensor
            tensors[theirs] = joined
        if self.segment_table and self.positions in state and self.segment_table not in tensors:
            table = state[self.positions]
            tensors[self.segment_table] = table.new_zeros(1, table.shape[1])
        copies = {copy: self.tied[copy] for copy in self.written_copies if self.tied[copy] in tensors}
        return tensors | {copy: tensors[source].clone() for copy, source in copies.items()}

    def from_hugging_face(
        self, stored: "Mapping[str, Tensor]", config: Config, where: Path
    ) -> "dict[str, Tensor]":
        """Convert a folder's tensors to our parameters, float32; heads missing in the folder are missing in the result.
        `where`: the folder.

        Raises UserError for a tensor without a place and for tied copies that differ."""
        state, folded = {}, None
        for theirs, tensor, places in self.placed(stored, where):
            if theirs == self.segment_table and len(tensor) == 1:
                folded = tensor
                continue
            for ours, weight in places:
                if isinstance(weight, Part):
                    state[ours] = tensor.float().chunk(weight.parts)[weight.number].clone()
                else:
                    state[ours] = weight.back(tensor.float(), config)
        if (
            folded is not None and self.positions in state
        ):  # without positions the folder is not whole: its loader says so
            state[self.positions] = state[self.positions] + folded.float()
        return state

    def placed(
        self, stored: "Mapping[str, Tensor]", where: Path
    ) -> "list[tuple[str, Tensor, list[tuple[str, Weight | Part]]]]":
        """Return each parameter of a folder: its current name, its tensor, and our parameters that it holds, with how.
        Raises UserError for a tensor without a place and for tied copies that differ."""
        found = [(name, one, self._back(name)) for name, one in self._sources(stored, where).items()]
        if unknown := [name for name, _, places in found if not places]:
            raise UserError(
                f"holds tensors of another kind of model: {_some(unknown)}",
                where=where,
                expected=f"those of {self.export_class}",
            )
        return found

    def _to(self, name: str) -> tuple[str, Weight | Part]:
        for ours, entry in self.names.items():
            if parts := matched(ours, name):
                weight = weight_of(entry)
                return weight.name.format(**parts) + parts["kind"], weight
        raise KeyError(f"{self.export_class} has no place for {name}")

    def _back(self, name: str) -> list[tuple[str, Weight | Part]]:
        found = []
        for ours, entry in self.names.items():
            weight = weight_of(entry)
            if parts := matched(weight.name, name):
                found.append((ours.format(**parts) + parts["kind"], weight))
                if not isinstance(weight, Part):
                    break
        return found

    def _sources(self, stored: "Mapping[str, Tensor]", where: Path) -> "dict[str, Tensor]":
        """Return the tensors that are parameters, by current names: no buffers, one of each tied pair."""
        named = {}
        for name, tensor in stored.items():
            for old, new in self.legacy.items():
                name = name.replace(old, new)
            named[name] = tensor
        if not any(name.split(".")[0] in self._first_parts() for name in named):  # an encoder without heads
            named = {f"{self.prefix}.{name}": tensor for name, tensor in named.items()}
        sources = {n: t for n, t in named.items() if n not in self.tied and n not in self.buffers}
        for copy, source in self.tied.items():
            if copy in named and not equal(named[copy], sources.setdefault(source, named[copy])):
                raise UserError(
                    f"{copy} differs from {source}",
                    where=where,
                    expected="tied weights, as every model here has them",
                )
        return sources

    def _first_parts(self) -> set[str]:
        return {weight_of(entry).name.split(".")[0] for entry in self.names.values()}


def _some(names: Iterable[str], count: int = 3) -> str:
    listed = sorted(names)
    return ", ".join(listed[:count]) + (f" and {len(listed) - count} more" if len(listed) > count else "")


# Define a family: with the names of its weights, the fields of its config.json, its inputs and its logits.


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
            if ours not in TRAINING_ONLY and _differs(ours, theirs[ours], getattr(encoder, ours))
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


# Define what families of encoders with rotary positions have in common.


UNSCALED: tuple[object, ...] = (None, {}, {"rope_type": "default"}, {"type": "default"})
"""Values of rope_scaling that change no angle."""


class Rotary(Family):
    """A family whose class states `biases` in several fields."""

    also: ClassVar[Mapping[str, tuple[str, ...]]]
    """Field -> further fields that have its value."""

    def config(self, run: RunConfig, vocabulary: VocabularyStamp) -> dict[str, Any]:
        """Return the fields of config.json, without class and dtype."""
        fields = super().config(run, vocabulary)
        return fields | {name: fields[one] for one, others in self.also.items() for name in others}

    def differences(self, config: Config, run: RunConfig, vocabulary_size: int) -> list[str]:
        """Describe how a config.json differs from the settings of a run that is to start from its weights, one line
        each."""
        known = {**self.defaults, **config}
        found = super().differences(config, run, vocabulary_size)
        if known.get("rope_scaling") not in UNSCALED:  # the older name; version 5 reads it too
            found.append(f"rope_scaling is {reprlib.repr(known['rope_scaling'])}, which must be null")
        return found + [
            f"{name} is {known[name]}, {one} {known.get(one)}, which must be equal"
            for one, others in self.also.items()
            for name in others
            if name in known and known[name] != known.get(one)
        ]
