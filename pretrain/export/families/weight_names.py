"""Convert tensors between our names and those of a Hugging Face class, in both directions.

Does not import torch: conversion only calls methods of the given tensors.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from data_pipeline.errors import UserError
from pretrain.export.families.entries import Config, Part, Weight, matched, weight_of

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.export.families.headers import Header

Stored = TypeVar("Stored", "Tensor", "Header")
"""A tensor of a folder, or what its file says of it."""

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
        self, stored: "Mapping[str, Stored]", where: Path
    ) -> "list[tuple[str, Stored, list[tuple[str, Weight | Part]]]]":
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

    def _sources(self, stored: "Mapping[str, Stored]", where: Path) -> "dict[str, Stored]":
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
        return {weight_of(entry).name.split(".")[0] for entry in self.names.values()}


def _some(names: Iterable[str], count: int = 3) -> str:
    listed = sorted(names)
    return ", ".join(listed[:count]) + (f" and {len(listed) - count} more" if len(listed) > count else "")
