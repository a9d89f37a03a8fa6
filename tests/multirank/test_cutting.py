"""Loss and gradients of a global batch in fp32, through the real loader, loop and engine, however it is cut.

Lengths and masked counts are as unequal as they come: ranks have different numbers of micro-batches at every step.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ranks import run

from data_pipeline.loader.loader import Loader, order_of
from data_pipeline.loader.packing import caps_for
from data_pipeline.records import Examples
from data_pipeline.shards.index import Index, write_index
from data_pipeline.shards.shard import write_shard
from launch.recipe import load_config
from pretrain.distributed.engine import build_engine
from pretrain.distributed.world import World
from pretrain.objectives.registry import with_defaults
from pretrain.train import compute
from pretrain.training.feed import Feed
from pretrain.training.guard import Guard, LossMeter
from pretrain.training.progress import Position, StopRequest, with_batch_counts
from pretrain.training.rank_timing import Pace
from pretrain.training.stream_memory import StreamMemory
from tests.factories.models import fresh_model
from tests.factories.shards import SIZE, StubVocabulary, blocks_of

pytestmark = [pytest.mark.slow, pytest.mark.multirank]

LONGEST, EXAMPLES, BATCH = 48, 33, 11
WHOLE, SMALL = 16, 1  # micro-batches, in examples of full length
STAGES = [(0, SMALL), (1, SMALL), (2, SMALL), (3, SMALL), (1, 3)]


def unequal_examples() -> Examples:
    """A third of full length with up to 40 masked positions, two thirds of four tokens with one of them masked."""
    rng = np.random.default_rng(5)
    lengths = np.where(rng.random(EXAMPLES) < 0.33, LONGEST, 4)
    masked = np.where(lengths == LONGEST, rng.choice([1, 40], EXAMPLES), 1)
    positions = [np.sort(rng.choice(n - 2, m, False)) + 1 for n, m in zip(lengths, masked, strict=True)]
    offsets, ends = (np.concatenate([[0], np.cumsum(counts)]) for counts in (lengths, masked))
    return Examples(
        rng.integers(5, SIZE, offsets[-1]).astype(np.uint16),
        offsets,
        (lengths // 2).astype(np.uint16),
        rng.choice([0, 1], EXAMPLES).astype(np.int8),
        np.concatenate(positions).astype(np.uint16),
        rng.integers(5, SIZE, ends[-1]).astype(np.uint16),
        ends,
    )


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("unequal")
    entry = write_shard(folder / "train-000000.tar", blocks_of(unequal_examples(), 8))
    write_index(
        folder,
        splits={"train": [entry], "held_out": []},
        settings={"sequence_length": LONGEST, "seed": 1},
        block_examples=8,
        vocabulary=StubVocabulary(),  # type: ignore[arg-type]
        statistics={},
    )
    return str(folder)


def cut(shards: str, cells: list[tuple[int, int]]) -> list[dict[str, Any]]:
    """Two steps at each (stage, micro-batch): the first one's gradient, which the first moment has a tenth of, and the
    figures of the log."""
    world = World.from_environment().start()
    index, found = Index.load(shards), []
    for stage, micro_batch in cells:
        overrides = ["encoder.layers=2", "encoder.hidden=32", "encoder.heads=2", "encoder.intermediate=64"]
        overrides += ["encoder.max_positions=64", "train.precision=fp32", "train.clip=0", "run.seed=3"]
        overrides += ["encoder.dropout=0", "encoder.attention_dropout=0", f"zero.stage={stage}"]
        config = load_config(
            "demo", [*overrides, "optim.name=adamw", "data.sequence_length=48", f"train.global_batch={BATCH}"]
        )
        engine = build_engine(fresh_model("bert", config.encoder, SIZE, seed=3), config, world)
        order, caps = order_of(index, seed=1, global_batch=BATCH), caps_for(index.train, micro_batch, LONGEST)
        run_log = SimpleNamespace(meter=LossMeter(), pace=Pace(world.device))
        plan = SimpleNamespace(index=index, objective=with_defaults("bert"))
        position, feed = Position(), Feed(world.device, index.vocabulary.cls, index.vocabulary.sep)
        loop = SimpleNamespace(
            config=config,
            plan=plan,
            engine=engine,
            feed=feed,
            run_log=run_log,
            world=world,
            position=position,
            guard=Guard(config, position, world, "fp32"),
            memory=StreamMemory({}, 0, 0, 0),
        )
        with Loader(index, order, caps, rank=world.rank, world=world.size) as loader:
            steps = with_batch_counts(iter(loader), world, StopRequest(), with_defaults("bert"))
            here: dict[str, Any] = {"figures": [], "micro_batches": [], "masked": [], "norms": []}
            for number in range(2):
                share, counts = next(steps)
                here["micro_batches"].append((len(share.micro_batches), counts.micro_batches))
                here["masked"].append(share.masked)
                engine.set_lr(0.0)
                compute(loop, feed.on_host(share), counts)  # type: ignore[arg-type]
                assert engine.step()
                run_log.meter.end_step()
                here["figures"].append(run_log.meter.read(world))
                here["norms"].append(engine.grad_norm)
                if number == 0:
                    here["gradient"] = {
                        (f.name, f.start): f.values.double().numpy() * 10
                        for f in engine.partition.fragments()
                        if f.kind == "exp_avg"
                    }
        here["shapes"] = engine.partition.shapes
        engine.close()
        found.append(here)
    return found


def assemble(ranks: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    whole = {name: np.full(int(np.prod(shape)), np.nan) for name, shape in ranks[0]["shapes"].items()}
    for rank in ranks:
        for (name, start), values in rank["gradient"].items():
            whole[name][start : start + len(values)] = values
    assert not any(np.isnan(values).any() for values in whole.values())
    return whole


@pytest.fixture(scope="module")
def whole(shards: str) -> dict[str, Any]:
    """One rank, one micro-batch, nothing sharded; and the same rank in many micro-batches."""
    one, many = run(cut, 1, shards, [(0, WHOLE), (0, SMALL)])[0]
    assert one["micro_batches"] == [(1, 1), (1, 1)]
    assert min(number for number, _ in many["micro_batches"]) >= 4
    assert_equal([many], one)
    return one


def assert_equal(ranks: list[dict[str, Any]], expected: dict[str, Any]) -> None:
    for rank in ranks:
        for found, right in zip(rank["figures"], expected["figures"], strict=True):
            assert found == pytest.approx(right, rel=1e-5)
        assert rank["norms"] == pytest.approx(expected["norms"], rel=1e-5)
    gradient, right = assemble(ranks), assemble([expected])
    scale = np.sqrt(sum(np.square(values).sum() for values in right.values()))
    for name, values in right.items():
        difference = np.linalg.norm(gradient[name] - values)
        # of a key's bias the true gradient is zero: what is there is rounding
        size = scale if name.endswith("attention.key.bias") else np.linalg.norm(values)
        assert difference <= 1e-5 * size, f"{name}: {difference / size:.1e}"


@pytest.mark.parametrize("ranks", [2, 3])
def test_loss_and_gradient_are_those_of_the_whole_batch(
    shards: str, whole: dict[str, Any], ranks: int
) -> None:
    found = run(cut, ranks, shards, STAGES)
    for number, cell in enumerate(STAGES):
        here = [cells[number] for cells in found]
        assert_equal(here, whole)
        masked = [rank["masked"][0] for rank in here]
        assert max(masked) >= 2 * min(masked), f"{cell}: {masked} would hide a mean of means"
        if cell[1] == SMALL:
            assert any(own < agreed for rank in here for own, agreed in rank["micro_batches"]), "no empty one"
