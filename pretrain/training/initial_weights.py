"""Load the weights that a run starts from: those of a checkpoint, or of a folder, changed step by step to the run's.

STEPS lists what happens to the weights of a Hugging Face folder: among other things, tables get rows for new words and
longer texts. A phase of longer examples has its positions extended in the same way.

Shape legend: V old entries of a vocabulary, N new ones; P positions of the model that a run starts from, L positions of
the run, E embedding size. Further dimensions of a table by entries (the embedding size, or none of a bias) stay.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from data_pipeline.errors import UserError
from data_pipeline.loader.loader import shards_vocabulary
from data_pipeline.shards.index import VocabularyStamp
from data_pipeline.vocabulary.base import Vocabulary
from data_pipeline.vocabulary.new_words import old_pieces
from pretrain.checkpoint.padding import padded, reader, real_shapes
from pretrain.checkpoint.store import find_checkpoint
from pretrain.config.encoder import layer_and_rest
from pretrain.config.settings import RunConfig
from pretrain.distributed.engine import Engine
from pretrain.distributed.partition_map import KINDS, whole_weights
from pretrain.distributed.world import World
from pretrain.huggingface.electra import DELTA, taken_apart
from pretrain.huggingface.folder import other_shape, read_weights
from pretrain.huggingface.registry import check_vocabulary
from pretrain.model.initialize import vocabulary_rows, without_padding
from pretrain.objectives.base import Objective
from pretrain.objectives.registry import load
from pretrain.preflight.check_run import Plan
from pretrain.run.folder import model_folders
from pretrain.training.progress import Position, position_of

# Rows of new words, for the tensors that have a row for each entry of a vocabulary.

Pieces = Sequence[Sequence[int]]
"""For each new entry the old ids that its text was cut into; none where the old vocabulary does not know its text."""


def mean(table_V: Tensor, pieces: Sequence[int]) -> Tensor:
    """Return the mean of the rows of a new entry's old pieces: (...). A new word then means, at first, what its pieces
    did, and the output's bias is theirs too."""
    return table_V[list(pieces)].mean(0)


def first(table_V: Tensor, pieces: Sequence[int]) -> Tensor:
    """Return the row of a new entry's first old piece: (...)."""
    return table_V[pieces[0]]


ROWS: dict[str, Callable[[Tensor, Sequence[int]], Tensor] | None] = {
    "mean": mean,
    "first": first,
    "fresh": None,
}
"""By the value of init_new_words: (the folder's table, an entry's old pieces) -> its row; None: that of a new model."""


def with_new_rows(table_V: Tensor, pieces_N: Pieces, how: str, fresh_N: Callable[[], Tensor]) -> Tensor:
    """Append rows for new entries to a table, as `how` says, a key of ROWS: (V + N, ...), the first V unchanged. An
    entry without old pieces gets the row of a new model, which `fresh_N` draws: from [UNK] all such would be equal."""
    row = ROWS[how]
    if row is None:
        return torch.cat((table_V, fresh_N()))
    drawn = fresh_N() if count_unknown(pieces_N) else table_V[:0]
    rows = [row(table_V, pieces) if pieces else drawn[n] for n, pieces in enumerate(pieces_N)]
    return torch.cat((table_V, torch.stack(rows)))


def count_unknown(pieces_N: Pieces) -> int:
    """Count the new entries without old pieces."""
    return sum(not pieces for pieces in pieces_N)


# Rows of learned positions, for longer texts.


def repeated(table_PE: Tensor, fresh_LE: Tensor) -> Tensor:
    """Repeat the table's rows in their order: (L, E). Beltagy et al. 2020 (Longformer, section 5) extend RoBERTa's
    512 positions so, and find that it keeps what attention knows of near tokens everywhere but at the seams."""
    return table_PE[torch.arange(len(fresh_LE)) % len(table_PE)]


def interpolated(table_PE: Tensor, fresh_LE: Tensor) -> Tensor:
    """Stretch the table over all positions, linearly between neighbouring rows, its ends at the ends: (L, E). Every
    position changes; neighbours become more alike."""
    stretched_1EL = torch.nn.functional.interpolate(
        table_PE.T[None], size=len(fresh_LE), mode="linear", align_corners=True
    )
    return stretched_1EL[0].T.contiguous()


def with_fresh_rows(table_PE: Tensor, fresh_LE: Tensor) -> Tensor:
    """Keep the table's rows and take those beyond from a new model's table: (L, E)."""
    return torch.cat((table_PE, fresh_LE[len(table_PE) :]))


def is_position_table(name: str) -> bool:
    """Return whether a parameter of ours with this name is a table of learned positions."""
    return ".embeddings.position." in name


EXTENSIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "repeat": repeated,
    "interpolate": interpolated,
    "fresh": with_fresh_rows,
}
"""By the value of init_positions: (the trained rows, fresh ones for the whole length) -> the first table so long."""


# The weights of a Hugging Face folder, changed to those of the run.


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
    headers_only: bool = False
    """Whether the weights are on the meta device, to check names and shapes."""
    notes: list[str] = field(default_factory=list)
    """What is worth a line in the log."""

    @property
    def run(self) -> RunConfig:
        """The settings of the run."""
        return self.objective.config

    @cached_property
    def fresh(self) -> dict[str, Tensor]:
        """The weights that the run would start from without a folder; drawn where a step needs some."""
        if self.headers_only:
            return meta_weights(self.objective, self.vocabulary)
        model = self.objective.fresh_model(self.vocabulary)
        return without_padding(model, {name: p.detach() for name, p in model.named_parameters()})


def meta_weights(objective: Objective, vocabulary: VocabularyStamp) -> dict[str, Tensor]:
    """Return the run's parameters, without vocabulary padding, on the meta device."""
    with torch.device("meta"):
        model = objective.build_model(vocabulary)
    return without_padding(model, {name: p.detach() for name, p in model.named_parameters()})


def from_folder(
    config: RunConfig,
    vocabulary: Vocabulary,
    shapes: Mapping[str, list[int]] | None = None,
    headers_only: bool = False,
) -> InitialWeights:
    """Return `initial_weights` for a run with this vocabulary, which is the folder's or extends it. `shapes`: None:
    those of the run's parameters."""
    old = vocabulary
    for folder in model_folders(Path(config.init_from)):
        old = check_vocabulary(folder, vocabulary, may_extend=True)
    objective, stamp = load(config), VocabularyStamp.of(vocabulary)
    if shapes is None:
        shapes = {name: list(weight.shape) for name, weight in meta_weights(objective, stamp).items()}
    return initial_weights(objective, stamp, shapes, old_pieces(old, vocabulary), headers_only)


def initial_weights(
    objective: Objective,
    vocabulary: VocabularyStamp,
    shapes: Mapping[str, list[int]],
    pieces: Pieces = (),
    headers_only: bool = False,
) -> InitialWeights:
    """Return a weight for each of `shapes` (names of the run's parameters -> shapes without vocabulary padding), read
    from the folder in init_from and changed by STEPS. `pieces`, `headers_only`: as in InitialWeights. Raises UserError
    for a folder that does not fit."""
    run = objective.config
    source = Path(run.init_from)
    weights = read_weights(source, run, vocabulary.size - len(pieces), headers_only)
    found = InitialWeights(objective, vocabulary, shapes, weights, pieces, headers_only)
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
        raise UserError(
            f"lacks {', '.join(sorted(parts)[:5])}",
            where=found.run.init_from,
            expected="all weights of an encoder",
        )
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


# The positions of a phase with longer examples, from those that shorter ones have trained.


@torch.no_grad()
def extend_trained_positions(
    plan: Plan, engine: Engine, position: Position, world: World, say: Callable[[str], None]
) -> None:
    """Where the phase's examples are longer than all that the tables of learned positions were trained on, give the
    rows up to their length first values, as init_positions says; moments stay. Those rows are otherwise as they were
    drawn. All ranks call this."""
    trained, length = position.positions_trained, plan.phase.config.data.sequence_length
    if not 0 < trained < length:
        return
    position.positions_trained = length
    names = sorted(name for name in engine.partition.shapes if is_position_table(name))
    if not names:
        return
    how, tables = plan.phase.config.init_positions, whole_weights(engine.partition, world, names)
    for name in names:
        rows = tables.setdefault(name, torch.empty(engine.partition.shapes[name]))
        if world.rank == 0:
            rows[:length] = EXTENSIONS[how](rows[:trained].clone(), rows[:length].clone())
        if world.size > 1:
            dist.broadcast(rows, src=0, group=world.messages)

    def read(name: str, kind: str, start: int, count: int) -> Tensor | None:
        rows = tables.get(name) if kind == "master" else None
        return None if rows is None else rows.view(-1)[start : start + count]

    engine.partition.load(read, updates=engine.partition.updates)
    if world.rank == 0:
        where = f"phase {plan.phase.name}: " if plan.phase.name else ""
        say(f"{where}{trained:,} positions extended to {length:,} (init_positions={how})")


# Load the weights that a run starts from into its engine: those of another run's checkpoint, or of a folder.


def start_from(
    source: Path, config: RunConfig, plan: Plan, engine: Engine, world: World, say: Callable[[str], None]
) -> int:
    """Load the weights of another model; counters restart, and with init_moments the moments are kept. What was
    changed in them is said on the first rank. Return how many positions it has trained, as in Position."""
    if not model_folders(source):
        checkpoint = find_checkpoint(source, world)
        kinds = KINDS if config.init_moments else ("master",)
        engine.partition.load(reader(checkpoint, engine), updates=0, kinds=kinds)
        return position_of(checkpoint).positions_trained
    shapes = real_shapes(engine)
    found: list[InitialWeights] = []
    world.together(lambda: found.append(from_folder(config, shards_vocabulary(plan.index), shapes)))
    [initial] = found

    def read(name: str, kind: str, start: int, length: int) -> Tensor:
        return initial.weights[name].reshape(-1)[start : start + length]

    engine.partition.load(padded(read, shapes), updates=0, kinds=("master",))
    if world.rank == 0:
        for note in initial.notes:
            say(f"{source}: {note}")
    return config.encoder.max_positions
