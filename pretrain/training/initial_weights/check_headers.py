"""Check, by the headers of its files alone, that a Hugging Face folder holds the whole encoder of a run.

Without torch, so that a preparation of hours need not be followed by a refusal. What tables of names tell is checked
here: tensors of another kind of model, layers that lack one, shapes that differ; the loader checks every shape again.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from data_pipeline.errors import UserError
from pretrain.config.settings import EncoderSettings, RunConfig
from pretrain.export.families.entries import Part, Weight
from pretrain.export.families.headers import Header, stored_headers
from pretrain.export.families.registry import family_of

OPTIONAL = ("encoder.embeddings.segment", "encoder.projection")
"""Our names that only some encoders have."""
KINDS = ("", ".weight", ".bias")
Shape = tuple[int, ...] | None
"""None: of a tensor that is stored in another form than ours."""


class Table(NamedTuple):
    """What a folder holds of the encoder: names of parameters, with {i} for the number of a layer, layers, and entries
    of the vocabulary."""

    names: tuple[str, ...]
    layers: int
    words: int


def check_headers(config: RunConfig, folders: Iterable[Path]) -> None:
    """Raise UserError, as the loader would, for a damaged file, a tensor of another kind of model, and an encoder that
    is not whole or of other sizes than the run's. Reads no weights."""
    found: dict[str, Shape] = {}
    tables = []
    for folder in folders:
        family, fields = family_of(folder)
        family = family.of_run(config)
        for _, header, places in family.placed(stored_headers(folder), folder):
            found |= {ours: _shape(header, weight) for ours, weight in places}
        if beside := [folder / file for file in family.beside if (folder / file).is_file()]:
            stored_headers(folder, beside)
        names = tuple(name for name in family.names if name.startswith("encoder."))
        tables.append(Table(names, family.stored_layers(fields), fields["vocab_size"]))
    lacking = {name for table in tables for name in _lacking(table, found, config.encoder)}
    if lacking:
        raise not_whole(lacking, config.init_from)
    for table in tables:
        _check_shapes(table, found, config)


def not_whole(names: Iterable[str], where: object) -> UserError:
    """Return the error for an encoder that lacks parameters, by our names."""
    return UserError(
        f"lacks {', '.join(sorted(names)[:5])}", where=where, expected="all weights of an encoder"
    )


def other_shape(name: str, found: Iterable[int], expected: Iterable[int], where: object) -> UserError:
    """Return the error for a parameter of another shape than the run's."""
    return UserError(f"{name} has shape {list(found)}", where=where, expected=f"{list(expected)}")


def _shape(header: Header, weight: Weight | Part) -> Shape:
    if isinstance(weight, Part):
        return (header.shape[0] // weight.parts, *header.shape[1:])
    return header.shape if weight.same else None


def _lacking(table: Table, found: Mapping[str, Shape], encoder: EncoderSettings) -> Iterator[str]:
    """Yield what a layer lacks that another one has, and what of the table is not there at all."""
    for pattern in table.names:
        if pattern in OPTIONAL:
            continue
        each = _places(pattern, table, encoder)
        kinds = [kind for kind in KINDS if any(f"{name}{kind}" in found for name in each)]
        for kind in kinds or [".weight"]:
            yield from (f"{name}{kind}" for name in each if f"{name}{kind}" not in found)


def _places(pattern: str, table: Table, encoder: EncoderSettings) -> list[str]:
    """Return the names that the pattern stands for: one for each layer that has it."""
    if "{i}" not in pattern:
        return [pattern]
    without_first = encoder.norm_place == "pre" and encoder.embedding_norm and "attention_norm" in pattern
    return [pattern.format(i=layer) for layer in range(int(without_first), table.layers)]


def _check_shapes(table: Table, found: Mapping[str, Shape], config: RunConfig) -> None:
    """Raise UserError for a parameter of another shape than in other layers, or than the run's settings say."""
    encoder = config.encoder
    expected: dict[str, tuple[int, ...]] = {}
    for pattern in table.names:
        each = _places(pattern, table, encoder)
        for kind in KINDS:
            shapes = [found.get(f"{name}{kind}") for name in each]
            if first := next((shape for shape in shapes if shape), None):
                expected |= {f"{name}{kind}": first for name in each if f"{name}{kind}" in found}
    inner = encoder.intermediate, encoder.hidden
    for name in expected:
        if name.endswith(".feed_forward.intermediate.weight"):
            expected[name] = inner
        if name == "encoder.embeddings.word.weight":
            expected[name] = (table.words, encoder.embedding_width)
    for name, shape in expected.items():
        there = found[name]
        if there is not None and there != shape:
            raise other_shape(name, there, shape, config.init_from)
