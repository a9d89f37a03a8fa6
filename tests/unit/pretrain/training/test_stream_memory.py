"""Memory of streams: by stream number, kept only of applied batches, shared out anew at another world size."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from data_pipeline.errors import UserError
from data_pipeline.loader.loader import held_out, held_out_steps
from data_pipeline.loader.packing import Caps
from launch.recipe import load_config
from pretrain.checkpoint.store import Damaged, open_checkpoint, save_checkpoint
from pretrain.distributed.world import World
from pretrain.model.batch import SPARE, MicroBatch, Shape
from pretrain.objectives.registry import OBJECTIVES, Registered
from pretrain.preflight.check_run import Plan, check_run
from pretrain.training.resume import phase_memory
from pretrain.training.stream_memory import StreamMemory
from tests.factories.shards import shard_folder

SHAPES = {"layers": (2, 3), "count": ()}


def batch(*streams: int) -> MicroBatch:
    found = MicroBatch.from_lists([[2, 5, 3]] * len(streams))
    return MicroBatch(**{**{f: getattr(found, f) for f in found.__dataclass_fields__ if f != "packing"},
                         "streams": torch.tensor(streams)})  # fmt: skip


def written(streams: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """What a model might return: numbers that tell the stream."""
    of = torch.tensor([float(s) for s in streams])
    return {"layers": of.view(-1, 1, 1) * 10 + torch.arange(6.0).view(1, 2, 3), "count": of + 0.5}


def test_each_stream_finds_its_own_memory_and_spare_examples_none() -> None:
    memory = StreamMemory(SHAPES, 12, 4, 8)
    assert not any(x.any() for x in memory.read(batch(4, 7)).values())
    memory.write(batch(6, 4), written((6, 4)))
    memory.write(batch(5, SPARE, 7), written((5, 99, 7)))
    assert not memory.read(batch(6))["count"].any(), "not before the batch is applied"
    memory.commit()
    found = memory.read(batch(7, SPARE, 4, 5, 6))
    assert found["count"].tolist() == [7.5, 0.0, 4.5, 5.5, 6.5]
    assert found["layers"].equal(
        written((7, 0, 4, 5, 6))["layers"] * torch.tensor([1, 0, 1, 1, 1]).view(-1, 1, 1)
    )
    memory.write(batch(6), written((60,)))
    memory.discard()
    memory.commit()
    assert memory.read(batch(6))["count"].tolist() == [6.5], "a skipped batch changes nothing"
    memory.clear()
    assert not any(x.any() for x in memory.read(batch(4, 5, 6, 7)).values())


def test_an_objective_without_memory_is_given_none() -> None:
    memory = StreamMemory({}, 3, 0, 3)
    assert memory.read(batch(0)) is None
    memory.write(batch(0), None)
    memory.commit()
    assert list(memory.fragments()) == []
    assert memory.state() == {}


def test_static_shapes_read_and_write_spare_rows() -> None:
    memory = StreamMemory(SHAPES, 2, 0, 2)
    padded = batch(1, 0).padded(Shape(16, 5, 0, 4))
    memory.write(padded, written((1, 0, 77, 78, 79)))
    memory.commit()
    assert memory.read(padded)["count"].tolist() == [1.5, 0.5, 0, 0, 0]


def saved(folder: Path, streams: int = 12) -> Path:
    """A checkpoint of one rank with the memory of all streams."""
    memory = StreamMemory(SHAPES, streams, 0, streams)
    memory.write(batch(*range(streams)), written(tuple(range(streams))))
    memory.commit()
    (folder / "checkpoints").mkdir(parents=True)
    state = {"memory": memory.state(), "position": {"phase": 1}}
    return save_checkpoint(folder, 3, memory.fragments(), {}, state, World())


@pytest.mark.parametrize("world", [1, 3, 5, 12])
def test_a_checkpoint_is_shared_out_to_any_number_of_ranks(tmp_path: Path, world: int) -> None:
    checkpoint, seen = open_checkpoint(saved(tmp_path)), []
    for rank in range(world):
        memory = StreamMemory.of_rank(
            SHAPES, 12, World(rank=rank, size=world, local_size=world, local_rank=rank)
        )
        memory.load(checkpoint)
        own = list(range(12 * rank // world, 12 * (rank + 1) // world))
        found = memory.read(batch(*own))
        assert all(found[name].equal(values) for name, values in written(tuple(own)).items())
        seen += own
    assert seen == list(range(12))


def test_a_memory_of_other_shapes_is_refused(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(saved(tmp_path))
    with pytest.raises(Damaged, match="holds a memory of"):
        StreamMemory(SHAPES, 6, 0, 6).load(checkpoint)


@pytest.mark.parametrize(("phase", "value"), [(1, 3.5), (2, 0.0)])
def test_a_phase_begins_without_memory_and_a_resumed_one_with_its_own(
    tmp_path: Path, phase: int, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "pretrain.training.resume.position_of", lambda found: SimpleNamespace(**found.state["position"])
    )
    plan = SimpleNamespace(
        objective=SimpleNamespace(memory=SHAPES), streams=12, phase=SimpleNamespace(number=phase)
    )
    memory = phase_memory(plan, open_checkpoint(saved(tmp_path)), World())  # type: ignore[arg-type]
    assert memory.read(batch(3))["count"].tolist() == [value]


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("world", [1, 2, 5, 20])
def test_held_out_examples_come_stretch_by_stretch(tmp_path: Path, world: int, both: bool) -> None:
    index, _ = shard_folder(tmp_path, [20, 8], held_out=(9, 5))
    caps = Caps(100, 8, 100)
    seen: dict[int, list[int]] = {}
    sizes = 0
    for rank in range(world):
        for share in held_out_steps(index, 13, caps, 4, rank, world, both_directions=both):
            sizes += share.examples
            for micro in share.micro_batches:
                for stream, key in zip(micro.streams.tolist(), micro.keys.tolist(), strict=True):
                    seen.setdefault(stream, []).append(key)
    onward = {0: [0, 1, 2], 1: [3, 4, 5], 2: [6, 7, 8], 3: [9, 10, 11, 12]}
    assert seen == (onward if not both else onward | {1: [5, 4, 3], 3: [12, 11, 10, 9]})
    assert sizes == 13 == held_out(index, 13, caps).examples


@pytest.mark.parametrize("settings", [["data.order=shuffled"], ["data.order=sequential", "data.streams=6"]])
def test_streams_that_are_no_rows_of_the_batch_are_refused(
    tiny: list[str], settings: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = "tests.factories.objectives:Remembering"
    monkeypatch.setitem(OBJECTIVES, "remembering", Registered(place, ("segment_pair",), has_memory=True))
    monkeypatch.setattr(Plan, "order", lambda *_: None)
    shards = f"train.shards={next(s for s in tiny if s.startswith('data.out=')).partition('=')[2]}"
    run = [*tiny, *settings, shards, f"run.dir={tmp_path}", "objective.name=remembering"]
    with pytest.raises(
        UserError, match=r"remembers what came before.*data\.order=sequential data\.streams=0"
    ):
        load_config("demo", run)
    config = load_config("demo", [*run, "data.order=sequential", "data.streams=0"])
    assert check_run(config, 1)[0].streams == config.train.global_batch
