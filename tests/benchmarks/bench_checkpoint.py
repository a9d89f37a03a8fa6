"""What a checkpoint costs: the stall of training on the demo's model; a large one's save and load beside DeepSpeed's.

    python -m tests.benchmarks.bench_checkpoint --folder /tmp --threads 2

The stall: steps of the demo's model (random ids in its batch) with saves among them; what `save` keeps training waiting
for, and by how much steps are slower than the median while the save is written, as a share of the time between two
saves of the demo's recipe. The large model: BERT-large with both moments of LAMB, filled with random numbers, saved and
loaded by ours and by DeepSpeed's own `save_checkpoint` and `load_checkpoint` from the same engine in turns. Ours hashes
every byte and has it on the disk (fsync) when it is done, and verifies every byte at a load; DeepSpeed's does neither.
"""

import argparse
import shutil
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from data_pipeline.loader.packing import Caps, pack
from launch.recipe import load_config
from pretrain.checkpoint.padding import reader, real_shapes, unpadded
from pretrain.checkpoint.save import Saver
from pretrain.checkpoint.store import newest_checkpoint
from pretrain.config.encoder import EncoderSettings
from pretrain.config.settings import RunConfig
from pretrain.distributed.engine import Engine, build_engine
from pretrain.distributed.partition_map import KINDS
from pretrain.distributed.world import World
from pretrain.model.batch import MicroBatch
from tests.benchmarks.timing import seconds
from tests.factories.models import fresh_model
from tests.factories.shards import filled


def main() -> None:
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    world = World().start()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        print(stall(arguments, world, Path(folder)), flush=True)
        print(large(arguments, world, Path(folder)), flush=True)
    world.stop()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="where checkpoints are written")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20, help="of the demo's model between two saves")
    parser.add_argument("--saves", type=int, default=5)
    parser.add_argument("--layers", type=int, default=24, help="of the large model")
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3, help="of saving and loading the large model")
    parser.add_argument("--vocabulary", type=int, default=30522)
    return parser.parse_args()


def random_batch(count: int, vocabulary: int, longest: int) -> MicroBatch:
    """Random ids; lengths uniform from a quarter of the longest to the longest; 15 % masked."""
    draws, numbers = np.random.default_rng(0), np.arange(count)
    examples = filled(draws.integers(longest // 4, longest + 1, count), draws, size=vocabulary)
    room = Caps(*[len(examples.tokens)] * 3)
    (packed,) = pack(examples, room, batch=0, epochs=numbers * 0, numbers=numbers).micro_batches
    return MicroBatch.from_packed(packed)


def engine_of(encoder: EncoderSettings, vocabulary: int, config: RunConfig, world: World) -> Engine:
    config.encoder, config.zero.stage, config.train.precision = encoder, 1, "fp32"
    return build_engine(fresh_model("bert", encoder, vocabulary, 1), config, world)


def save(engine: Engine, saver: Saver, step: int) -> None:
    shapes = real_shapes(engine)
    state = {"updates": engine.partition.updates, "held_out_loss": None}
    saver.save(step, unpadded(engine.partition.fragments(), shapes), shapes, state)


def stall(arguments: argparse.Namespace, world: World, folder: Path) -> str:
    """Trains the demo's model with saves among the steps."""
    config = load_config("demo", [f"run.dir={folder}", "optim.name=adamw"])
    vocabulary = config.vocabulary.size
    engine = engine_of(config.encoder, vocabulary, config, world)
    batch = random_batch(config.train.global_batch, vocabulary, config.data.sequence_length)
    saver = Saver(config, world, Console(), 0)

    def train() -> None:
        terms, _ = engine(replace(batch))
        engine.set_lr(1e-4)
        engine.backward(sum(term.weight * term.sum / term.count for term in terms.values()), last=True)
        engine.step()

    for _ in range(3):
        train()  # the first ones warm up
    steps, waits, beside = [], [], []
    for number in range(1, arguments.saves + 1):
        waits.append(seconds(lambda number=number: save(engine, saver, number)))
        slow = []
        for _ in range(arguments.steps):
            under_way = saver._thread is not None and saver._thread.is_alive()
            (slow if under_way else steps).append(seconds(train))
        beside.append(slow)
    saver.finish()
    engine.close()
    step = statistics.median(steps)
    slower = statistics.median(max(0.0, sum(slow) - len(slow) * step) for slow in beside)
    # the first save allocates the copies, as the first of a run does; the median is the others'
    wait, interval = statistics.median(waits), config.train.checkpoint_every
    return (
        f"demo's model, {sum(p.numel() for p in engine.module.parameters()) / 1e6:.1f} M parameters: a step "
        f"{step * 1e3:.1f} ms; a save stalls training {wait * 1e3:.1f} ms (the first {waits[0] * 1e3:.1f}) and "
        f"slows the {statistics.median(map(len, beside)):.0f} steps beside it by {slower * 1e3:.1f} ms: "
        f"{(wait + slower) / (interval * step):.3%} of the wall time of its {interval} steps"
    )


def large(arguments: argparse.Namespace, world: World, folder: Path) -> str:
    """Saves and loads a large model, ours and DeepSpeed's in turns; medians."""
    hidden = arguments.hidden
    encoder = EncoderSettings(
        layers=arguments.layers, hidden=hidden, heads=max(1, hidden // 64), intermediate=4 * hidden
    )
    config = RunConfig()
    config.run.dir, config.checkpoint.keep = str(folder / "large"), 1
    (folder / "large").mkdir()
    engine = engine_of(encoder, arguments.vocabulary, config, world)
    shapes, draws = real_shapes(engine), torch.Generator().manual_seed(1)
    engine.partition.load(lambda name, kind, start, size: torch.rand(size, generator=draws), updates=7)
    saver = Saver(config, world, Console(), 0)
    theirs: Any = engine._engine
    times: dict[str, list[float]] = {}

    def timed(what: str, action: Callable[[], object]) -> None:
        times.setdefault(what, []).append(seconds(action))

    for number in range(1, arguments.rounds + 1):
        timed("ours: training waits", lambda number=number: save(engine, saver, number))
        timed("ours: written behind it", saver.finish)
        timed(
            "ours: load, verified", lambda: engine.partition.load(reader(newest(folder), engine), updates=7)
        )
        shutil.rmtree(folder / "theirs", ignore_errors=True)
        timed("DeepSpeed: save", lambda: theirs.save_checkpoint(str(folder / "theirs"), tag="it"))
        timed("DeepSpeed: load", lambda: theirs.load_checkpoint(str(folder / "theirs"), tag="it"))
    engine.close()
    parameters = sum(torch.Size(shape).numel() for shape in shapes.values())
    sizes = {
        name: sum(p.stat().st_size for p in (folder / name).rglob("*") if p.is_file()) / 1e9
        for name in ("large", "theirs")
    }
    lines = [f"{what:24s} {statistics.median(found):8.2f} s" for what, found in times.items()]
    told = f"{parameters / 1e6:.0f} M parameters, {len(KINDS)} tensors of each in fp32: ours {sizes['large']:.2f} GB, "
    return "\n".join([f"{told}DeepSpeed's {sizes['theirs']:.2f} GB; median of {arguments.rounds}", *lines])


def newest(folder: Path) -> Any:
    return newest_checkpoint(folder / "large")


if __name__ == "__main__":
    main()
