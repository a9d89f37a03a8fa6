"""Define a Hugging Face family: config and weights in both directions, and how its logits are computed.

Does not import torch, so that a folder's config.json can be checked before any rank starts: conversion only calls
methods of the given tensors.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from data_pipeline.errors import UserError
from data_pipeline.shards.schema import VocabularyStamp
from pretrain.config.settings import EncoderSettings, RunConfig

if TYPE_CHECKING:
    import transformers
    from torch import Tensor

    from pretrain.model.batch import MicroBatch

Config = Mapping[str, Any]
"""The fields of a config.json."""

POSITIONS = "encoder.embeddings.position.weight"
UNCHECKED = ("dropout", "attention_dropout", "initializer_range")
"""Training settings that a run may change from the model that it starts from."""


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


class Head(NamedTuple):
    """The output of transformers' model that holds the logits of one of our heads."""

    output: str
    per_token: bool = True
    """Shaped (examples, longest, ...), one row per token; False: (examples, ...)."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """One model class of transformers, as data. A family that needs more than the tables express (a tensor added,
    copied or folded into another, its own inputs) is a subclass that overrides the method concerned."""

    export_class: str
    """The class of transformers that loads an export; also the name of the family."""
    model_type: str
    """Value of `model_type` in config.json."""
    prefix: str
    """First part of the names of encoder weights, which files of an encoder without heads lack."""
    what: str
    """A sentence for the card that describes the model."""
    names: Mapping[str, str | Weight]
    """Our parameters -> theirs, with a letter in braces for each number. A name without .weight or .bias stands for
    both."""
    heads: Mapping[str, Head]
    """Our heads, by their names in `Model.logits`, whose logits an export is compared on."""
    fields: Mapping[str, str | Field]
    """Encoder settings -> fields of config.json."""
    fixed: Config = field(default_factory=dict)
    """Fields that are the same for every model of the family."""
    defaults: Config = field(default_factory=dict)
    """Values of fields that an older config.json may lack."""
    special_ids: Mapping[str, str] = field(default_factory=lambda: {"pad_token_id": "pad"})
    """Fields with a special id -> its role in a vocabulary."""
    left_out: tuple[str, ...] = ()
    """Prefixes of our names that this folder does not hold: heads that the class lacks, parts in another folder."""
    beside: Mapping[str, str] = field(default_factory=dict)
    """Files beside the model, for heads that the class lacks -> the prefix of our names of such a head, under which the
    file holds it."""
    tied: Mapping[str, str] = field(default_factory=dict)
    """Copies -> the tensors they are copies of. Copies are read and compared, never written: if both are present and
    different, transformers leaves them untied without a warning."""
    buffers: tuple[str, ...] = ()
    """Names in files that are not parameters."""
    legacy: Mapping[str, str] = field(default_factory=dict)
    """Parts of names in older files -> their current names."""
    segment_table: str = ""
    """Their segment table. A single row adds the same to every token: it is written, as zeros, if an encoder has no
    segments, and when read it is added to the position table."""
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

    def of_run(self, run: RunConfig) -> "Family":
        """Return the family as it is for the models of this run."""
        return self

    def encoder(self, run: RunConfig) -> EncoderSettings:
        """Return the settings of the encoder that the folder holds."""
        return run.encoder

    def config(self, run: RunConfig, vocabulary: VocabularyStamp) -> dict[str, Any]:
        """Return the fields of config.json, without class and dtype."""
        encoder = self.encoder(run)
        fields = {ours: _field(entry) for ours, entry in self.fields.items()}
        return {
            **{entry.name: entry.to(getattr(encoder, ours)) for ours, entry in fields.items()},
            "vocab_size": vocabulary.size,
            **{name: getattr(vocabulary, role) for name, role in self.special_ids.items()},
            **self.fixed,
        }

    def settings(self, config: Config) -> dict[str, Any]:
        """Return the encoder settings stated in a config.json, by name; None for those that it lacks or we do not
        have."""
        known = {**self.defaults, **config}
        fields = {ours: _field(entry) for ours, entry in self.fields.items()}
        return {
            ours: entry.back(known[entry.name]) if entry.name in known else None
            for ours, entry in fields.items()
        }

    def differences(self, config: Config, run: RunConfig, vocabulary_size: int) -> list[str]:
        """Describe how a config.json differs from the settings of a run that is to start from its weights, one line
        each."""
        encoder, theirs = self.encoder(run), self.settings(config)
        found = [
            f"encoder.{ours} is {getattr(encoder, ours)}, {_field(entry).name} {config.get(_field(entry).name)}"
            for ours, entry in self.fields.items()
            if ours not in UNCHECKED and theirs[ours] != getattr(encoder, ours)
        ]
        if config.get("vocab_size") != vocabulary_size:
            found.append(
                f"the vocabulary has {vocabulary_size} entries, vocab_size is {config.get('vocab_size')}"
            )
        return found + [
            f"{name} is {config[name]}, which must be {value}"
            for name, value in self.fixed.items()
            if config.get(name, value) != value
        ]

    def their_name(self, name: str) -> str:
        """Return their name of our parameter `name`. Raises KeyError if the folder has no place for it."""
        return self._to(name)[0]

    def our_name(self, name: str) -> str:
        """Return our name of their parameter `name`. Raises KeyError if we have no place for it."""
        return self._back(name)[0]

    def to_hugging_face(self, state: "Mapping[str, Tensor]", config: Config) -> "dict[str, Tensor]":
        """Convert our parameters, without vocabulary padding, to those that the folder holds, without tied copies and
        omitted heads. `config`: the folder's. Raises UserError for a parameter without a place."""
        tensors = {}
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
            tensors[theirs] = weight.to(tensor, config)
        if self.segment_table and POSITIONS in state and self.segment_table not in tensors:
            tensors[self.segment_table] = state[POSITIONS].new_zeros(1, state[POSITIONS].shape[1])
        return tensors

    def from_hugging_face(
        self, stored: "Mapping[str, Tensor]", config: Config, where: Path
    ) -> "dict[str, Tensor]":
        """Convert a folder's tensors to our parameters, float32; heads missing in the folder are missing in the result.
        `where`: the folder.

        Raises UserError for a tensor without a place and for tied copies that differ."""
        state, unknown = {}, []
        sources = self._sources(stored, where)
        segments = sources.get(self.segment_table)
        folded = sources.pop(self.segment_table) if segments is not None and len(segments) == 1 else None
        for theirs, tensor in sources.items():
            try:
                ours, weight = self._back(theirs)
            except KeyError:
                unknown.append(theirs)
            else:
                state[ours] = weight.back(tensor.float(), config)
        if unknown:
            raise UserError(
                f"holds tensors of another kind of model: {_some(unknown)}",
                where=where,
                expected=f"those of {self.export_class}",
            )
        if (
            folded is not None and POSITIONS in state
        ):  # without positions the folder is not whole: its loader says so
            state[POSITIONS] = state[POSITIONS] + folded.float()
        return state

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

    def _to(self, name: str) -> tuple[str, Weight]:
        for ours, entry in self.names.items():
            if parts := _matched(ours, name):
                weight = _weight(entry)
                return weight.name.format(**parts) + parts["kind"], weight
        raise KeyError(f"{self.export_class} has no place for {name}")

    def _back(self, name: str) -> tuple[str, Weight]:
        for ours, entry in self.names.items():
            weight = _weight(entry)
            if parts := _matched(weight.name, name):
                return ours.format(**parts) + parts["kind"], weight
        raise KeyError(f"{name} of {self.export_class} has no place here")

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
            if copy in named and not named[copy].equal(sources.setdefault(source, named[copy])):
                raise UserError(
                    f"{copy} differs from {source}",
                    where=where,
                    expected="tied weights, as every model here has them",
                )
        return sources

    def _first_parts(self) -> set[str]:
        return {_weight(entry).name.split(".")[0] for entry in self.names.values()}


def _field(entry: str | Field) -> Field:
    return entry if isinstance(entry, Field) else Field(entry, _same, _same)


def _weight(entry: str | Weight) -> Weight:
    return entry if isinstance(entry, Weight) else Weight(entry, _same, _same)


def _same(value: Any, _: object = None) -> Any:
    return value


def _matched(pattern: str, name: str) -> dict[str, str] | None:
    """Return the numbers in `name`, and its ending if `pattern` covers both; None if they do not match."""
    found = _compiled(pattern).fullmatch(name)
    return {key: value or "" for key, value in found.groupdict().items()} if found else None


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    core = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>\\d+)", re.escape(pattern))
    return re.compile(core + r"(?P<kind>\.weight|\.bias)?")


def _some(names: Iterable[str], count: int = 3) -> str:
    listed = sorted(names)
    return ", ".join(listed[:count]) + (f" and {len(listed) - count} more" if len(listed) > count else "")
