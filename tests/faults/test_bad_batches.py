"""Batches with NaN, a spike of the loss or damaged data: skipped, rolled back or the end, on all ranks alike."""

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from disturbed import Disturbance, train

from data_pipeline.errors import UserError
from pretrain.config.settings import RunConfig
from pretrain.distributed.world import World
from pretrain.run.events import LINES_LOST, read_disturbances, read_events
from pretrain.training.guard import Guard
from pretrain.training.progress import Position
from tests.command_line import Maskmill, setting
from tests.run_ends import assert_same_weights, final

pytestmark = pytest.mark.slow

NAN = math.nan
RUN = ["train.steps=8", "encoder.dropout=0", "encoder.attention_dropout=0", "zero.stage=1"]
SPIKES = ["train.spike_window=8", "train.spike_sigma=8"]  # watched from the fifth batch on


def nan(*batches: int, rank: int = 1) -> list[Disturbance]:
    return [Disturbance(batch, rank, NAN) for batch in batches]


def spike(batch: int) -> list[Disturbance]:
    return [Disturbance(batch, 0, 40.0)]


@pytest.fixture(scope="module")
def damaged(tiny: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards with a byte flipped in one block."""
    folder = tmp_path_factory.mktemp("damaged") / "shards"
    shutil.copytree(setting(tiny, "data.out"), folder)
    shard = next(iter(sorted(folder.glob("train-*.tar"))))
    data = bytearray(shard.read_bytes())
    data[2000] ^= 1
    shard.write_bytes(data)
    return folder


@pytest.fixture(scope="module")
def phases(tiny: list[str], maskmill: Maskmill, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two phases, the second one of longer examples, whose positions are extended at the border."""
    folder = tmp_path_factory.mktemp("shorter")
    data = {"out": str(folder), "sequence_length": 16, "max_predictions": 3}
    maskmill("prepare", "demo", *tiny, *(f"data.{key}={value}" for key, value in data.items()))
    first, second = ({"name": name, "train": {"steps": 4}} for name in ("first", "second"))
    return f"phases={json.dumps([{**first, 'data': data}, second])}"


@pytest.fixture(scope="module")
def said(
    tiny: list[str], damaged: Path, phases: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, list[str]]]:
    """Every run on two ranks: its folder, and what its ranks said."""
    folder = tmp_path_factory.mktemp("runs")
    on_damage = f"train.shards={damaged}"
    runs = {
        "skip": (["zero.stage=0"], nan(3)),
        "skip three": (["zero.stage=2"], nan(1, 5, 6)),
        "rollback": (["zero.stage=2", "train.on_spike=rollback", *SPIKES], [*nan(1), *spike(6)]),
        "skip at the start": (["train.checkpoint_every=0"], nan(0, 1)),
        "rollback at the start": (["train.checkpoint_every=0", "train.on_nan=rollback"], nan(1)),
        "skip at a border": ([phases], nan(4)),
        "rollback at a border": ([phases, "train.on_nan=rollback"], nan(4)),
        "stop": (["train.on_nan=stop"], nan(2)),
        "hopeless": ([], nan(*range(2, 40))),
        "spike": (["train.on_spike=skip", *SPIKES], spike(5)),
        "spike later": (["train.on_spike=skip", *SPIKES, "run.stop_after=5"], spike(5)),
        "damage": ([on_damage, "data.on_damage=skip"], []),
        "damage stops": ([on_damage], []),
    }
    places = {name: folder / name.replace(" ", "-") for name in runs}
    todo = [
        ([*tiny, *RUN, "run.ranks=2", f"run.dir={places[name]}", *settings], disturbances)
        for name, (settings, disturbances) in runs.items()
    ]
    answers = list(zip(*train(2, todo), strict=True))
    return {name: (places[name], list(answer)) for name, answer in zip(runs, answers, strict=True)}


def position(run: Path, step: int = 8) -> Position:
    return Position(**final(run, step).state["position"])


def events(run: Path) -> list[tuple[str, int]]:
    return [(event["event"], event["batch"]) for event in read_disturbances(run)]


Said = dict[str, tuple[Path, list[str]]]


@pytest.mark.multirank
def test_nan_on_one_rank_is_skipped_by_all(said: Said) -> None:
    run, answers = said["skip"]
    assert answers == ["", ""]
    assert (position(run).batch, position(run).skipped) == (9, [3])
    assert events(run) == [("skip", 3)]
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-2])
    assert (last["step"], last["batch"], last["skipped_batches"]) == (8, 9, 1)


@pytest.mark.multirank
def test_nan_on_one_rank_stops_all(said: Said) -> None:
    run, answers = said["stop"]
    assert answers[0] == answers[1]
    assert "the gradient of batch 2 is not finite, after step 2" in answers[0]
    assert json.loads((run / "summary.json").read_text())["status"] == "failed"


@pytest.mark.multirank
def test_ten_in_a_row_end_the_run(said: Said) -> None:
    _, answers = said["hopeless"]
    assert answers[0] == answers[1]
    assert "10th batch in a row" in answers[0]


@pytest.mark.multirank
def test_a_rollback_is_as_if_the_batches_since_the_checkpoint_had_not_been(said: Said) -> None:
    run, answers = said["rollback"]
    assert answers == ["", ""]
    assert (position(run).batch, position(run).skipped) == (11, [1, 5, 6])
    assert events(run) == [("skip", 1), ("rollback", 6)]
    assert_same_weights(run, said["skip three"][0])
    assert len(position(run).losses) == 8, "those of the batches that count"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, *range(1, 9), 8], "each step once, and both evaluations"
    (lost,) = [event["lines"] for event in read_events(run) if event["event"] == LINES_LOST]
    assert 5 in [line["step"] for line in lost]


@pytest.mark.multirank
def test_a_rollback_before_the_first_checkpoint_goes_to_the_start(said: Said) -> None:
    run, answers = said["rollback at the start"]
    assert answers == ["", ""]
    assert position(run).skipped == [0, 1]
    assert_same_weights(run, said["skip at the start"][0])


@pytest.mark.multirank
def test_a_rollback_from_a_phase_to_the_end_of_the_one_before_stays_in_its_phase(said: Said) -> None:
    run, answers = said["rollback at a border"]
    assert answers == ["", ""]
    assert (position(run).phase, position(run).skipped) == (1, [4])
    assert_same_weights(run, said["skip at a border"][0])


@pytest.mark.multirank
def test_resumed_on_another_number_of_ranks_the_same_batches_are_skipped(said: Said, tiny: list[str]) -> None:
    run, answers = said["spike"]
    assert answers == ["", ""]
    assert position(run).skipped == [5]
    later, answers = said["spike later"]
    assert answers == ["", ""]
    assert position(later, 5).skipped == []
    settings = [*tiny, *RUN, "run.ranks=1", f"run.dir={later}", "train.on_spike=skip", *SPIKES]
    assert train(1, [(settings, spike(5))]) == [[""]]
    assert position(later).skipped == [5]
    assert position(later).losses == pytest.approx(position(run).losses, rel=1e-5)
    for name in final(run).shapes:
        torch.testing.assert_close(final(later).tensor(name), final(run).tensor(name), rtol=1e-4, atol=1e-4)


@pytest.mark.multirank
def test_damaged_blocks_are_left_out_and_counted(said: Said, damaged: Path) -> None:
    run, answers = said["damage"]
    assert answers == ["", ""]
    there = position(run)
    assert there.damaged > 0
    assert there.examples + there.damaged == there.batch * 12
    text = (run / "events.jsonl").read_text()
    assert text.count("left out") == 1
    assert "train-000000.tar, block 0" in text
    _, answers = said["damage stops"]
    told = [answer for answer in answers if "bytes changed" in answer]
    assert told, answers


def test_spikes_are_judged_by_the_losses_before_them() -> None:
    config = RunConfig()
    config.train.on_spike, config.train.spike_window, config.train.spike_sigma = "skip", 6, 3.0
    where = Position()
    guard = Guard(config, where, World(), "fp32")

    def judged(loss: float) -> bool:
        for part in (0.25, 0.75):
            guard.add(torch.tensor(loss * part))
        accepted = guard.accepts()
        if accepted:
            guard.accepted()
        return accepted

    assert [judged(loss) for loss in (5.0, 500.0, 5.2)] == [True] * 3, "too few to judge by"
    del where.losses[1]
    assert [judged(loss) for loss in (4.8, 5.1)] == [True] * 2
    assert not judged(9.0)
    where.batch = 6
    assert guard.refused(where, empty=False)[0] == "skip"
    assert judged(5.0), "the spike itself is not measured against"
    assert judged(4.7)
    assert judged(5.1)
    assert len(where.losses) == 6
    known = list(where.losses)
    guard.add(torch.tensor(0.1))
    assert guard.accepts()
    guard.accepted(whole=False)
    assert where.losses == known, "a batch without masked tokens is nothing to compare with"
    assert judged(math.nan), "not a spike: the engine will not apply it"
    assert guard.refused(where, empty=False)[1] == "the gradient of batch 5 is not finite"


def test_fp16_overflows_are_skipped_whatever_on_nan_says() -> None:
    config = RunConfig()
    config.train.on_nan = "stop"
    where = Position(batch=4)
    assert Guard(config, where, World(), "fp16").refused(where, empty=False)[0] == "skip"
    with pytest.raises(UserError, match="batch 3 is not finite"):
        Guard(config, where, World(), "bf16").refused(where, empty=False)


def test_one_checkpoint_is_returned_to_nine_times_at_most() -> None:
    guard = Guard(RunConfig(), Position(), World(), "fp32")
    where = Position(step=4)
    for _ in range(9):
        guard.rolled_back(where)
    guard.rolled_back(Position(step=6))
    with pytest.raises(UserError, match="rolled back to step 4 10 times"):
        guard.rolled_back(where)
