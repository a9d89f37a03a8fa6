"""Read the weights of a Hugging Face folder and change them, step by step, to those that a run starts from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import torch
from torch import Tensor

from data_pipeline.shards.index import VocabularyStamp
from pretrain.config.encoder import layer_and_rest
from pretrain.config.settings import RunConfig
from pretrain.huggingface.electra import DELTA, taken_apart
from pretrain.huggingface.folder import read_weights
from pretrain.model.initialize import vocabulary_rows, without_padding
from pretrain.objectives.base import Objective
from pretrain.training.initial_weights.check_headers import not_whole, other_shape
from pretrain.training.initial_weights.new_words import Pieces, count_unknown, with_new_rows
from pretrain.training.initial_weights.positions import EXTENSIONS, is_position_table


@dataclass
class InitialWeights:
    """The weights on their way from the folder to the run. Steps change `weights` and add to `notes`."""

    objective: Objective
    vocabulary: VocabularyStamp
    shapes: Mapping[str, list[int]]
    """Of the run's parameters, without vocabulary padding."""
    weights: dict[str, Tensor]
    """By our names, float32, without vocabulary padding."""
    pieces: Pieces = ()
    """For each entry of the run's vocabulary that the folder's lacks, the folder's ids that its text is cut into; none
    where that is [UNK] alone."""
    notes: list[str] = field(default_factory=list)
    """What is worth a line in the log."""

    @property
    def run(self) -> RunConfig:
        """The settings of the run."""
        return self.objective.config

    @cached_property
    def fresh(self) -> dict[str, Tensor]:
        """The weights that the run would start from without a folder; drawn where a step needs some."""
        model = self.objective.fresh_model(self.vocabulary)
        return without_padding(model, {name: p.detach() for name, p in model.named_parameters()})


def initial_weights(
    objective: Objective, vocabulary: VocabularyStamp, shapes: Mapping[str, list[int]], pieces: Pieces = ()
) -> InitialWeights:
    """Return a weight for each of `shapes` (names of the run's parameters -> shapes without vocabulary padding), read
    from the folder in init_from and changed by STEPS. `pieces`: as in InitialWeights. Raises UserError for a folder
    that does not fit."""
    run = objective.config
    source = Path(run.init_from)
    weights = read_weights(source, run, vocabulary.size - len(pieces))
    found = InitialWeights(objective, vocabulary, shapes, weights, pieces)
    for step in STEPS:
        step(found)
    for name, shape in shapes.items():
        if list(found.weights[name].shape) != shape:
            raise other_shape(name, found.weights[name].shape, shape, source)
    return found


def extend_vocabulary(found: InitialWeights) -> None:
    """Give new words rows in the tensors that have one for each entry of the vocabulary, as init_new_words says; fresh
    ones where the old vocabulary has no piece of a word."""
    if not found.pieces:
        return
    how, size = found.run.init_new_words, found.vocabulary.size
    with torch.device("meta"):
        tables = vocabulary_rows(found.objective.build_model(found.vocabulary))
    for name in tables.keys() & found.weights.keys():
        found.weights[name] = with_new_rows(
            found.weights[name], found.pieces, how, partial(_fresh, found, name)
        )
    old = size - len(found.pieces)
    unknown = count_unknown(found.pieces)
    told = f"; {unknown:,} of the new ones are fresh, since the old vocabulary takes them as unknown"
    found.notes.append(
        f"{old:,} entries of the vocabulary extended to {size:,} (init_new_words={how})"
        + (told if unknown and how != "fresh" else "")
    )


def _fresh(found: InitialWeights, name: str) -> Tensor:
    return found.fresh[name][-len(found.pieces) :]


def take_tables_apart(found: InitialWeights) -> None:
    """Take the generator's tables out of the discriminator's where a run has them apart."""
    found.weights = taken_apart(found.weights, [name for name in found.shapes if name.endswith(DELTA)])


def extend_positions(found: InitialWeights) -> None:
    """Lengthen the tables of learned positions to encoder.max_positions, as init_positions says."""
    notes = []
    for name in (name for name in found.shapes if name in found.weights and is_position_table(name)):
        table, wanted = found.weights[name], found.shapes[name][0]
        if len(table) < wanted:
            how = found.run.init_positions
            found.weights[name] = EXTENSIONS[how](table, found.fresh[name])
            notes.append(f"{len(table):,} positions extended to {wanted:,} (init_positions={how})")
    found.notes += dict.fromkeys(notes)


def add_heads(found: InitialWeights) -> None:
    """Give the heads that the folder lacks fresh weights. Raises UserError if the encoder itself is not whole."""
    missing = [name for name in found.shapes if name not in found.weights]
    if parts := [name for name in missing if name.startswith("encoder.")]:
        raise not_whole(parts, found.run.init_from)
    for name in missing:
        found.weights[name] = found.fresh[name]
    if missing:
        found.notes.append(
            f"WARNING: the folder lacks {', '.join(missing)}, which objective.name={found.objective.name} needs: "
            "their weights are fresh"
        )


def leave_out_layers(found: InitialWeights) -> None:
    """Say which layers are behind those that the folder's config.json counts: transformers leaves them out too."""
    places = filter(None, map(layer_and_rest, found.weights.keys() - found.shapes.keys()))
    behind = sorted({layer for layer, _ in places if layer >= found.run.encoder.layers})
    if behind:
        found.notes.append(
            f"WARNING: config.json counts {found.run.encoder.layers} layers: those from {behind[0]} to {behind[-1]} of"
            " the weights are left out"
        )


STEPS: tuple[Callable[[InitialWeights], None], ...] = (
    take_tables_apart,
    extend_vocabulary,
    extend_positions,
    add_heads,
    leave_out_layers,
)
"""What happens to the weights of a folder, in this order."""
