"""Load the weights that a run starts from into its engine: those of another run's checkpoint, or of a folder."""

from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from data_pipeline.loader.loader import shards_vocabulary
from data_pipeline.vocabulary.new_words import old_pieces
from pretrain.checkpoint.padding import padded, reader, real_shapes
from pretrain.checkpoint.store import find_checkpoint
from pretrain.config.settings import RunConfig
from pretrain.distributed.engine import Engine
from pretrain.distributed.partition_map import KINDS
from pretrain.distributed.world import World
from pretrain.preflight.check_run import Plan
from pretrain.run.folder import model_folders
from pretrain.training.initial_weights.check import check_hugging_face
from pretrain.training.initial_weights.check_source import refuse_another_model
from pretrain.training.initial_weights.load import InitialWeights, initial_weights
from pretrain.training.progress import position_of


def start_from(
    source: Path, config: RunConfig, plan: Plan, engine: Engine, world: World, say: Callable[[str], None]
) -> int:
    """Load the weights of another model; counters restart, and with init_moments the moments are kept. What was
    changed in them is said on the first rank. Return how many positions it has trained, as in Position."""
    if not model_folders(source):
        checkpoint = find_checkpoint(source, world)
        refuse_another_model(checkpoint, plan)
        kinds = KINDS if config.init_moments else ("master",)
        engine.partition.load(reader(checkpoint, engine), updates=0, kinds=kinds)
        return position_of(checkpoint).positions_trained
    shapes = real_shapes(engine)
    found: list[InitialWeights] = []

    def load() -> None:
        vocabulary = shards_vocabulary(plan.index)
        pieces = old_pieces(check_hugging_face(config, vocabulary), vocabulary)
        found.append(initial_weights(plan.objective, plan.index.vocabulary, shapes, pieces))

    world.together(load)
    [initial] = found

    def read(name: str, kind: str, start: int, length: int) -> Tensor:
        return initial.weights[name].reshape(-1)[start : start + length]

    engine.partition.load(padded(read, shapes), updates=0, kinds=("master",))
    if world.rank == 0:
        for note in initial.notes:
            say(f"{source}: {note}")
    return config.encoder.max_positions
