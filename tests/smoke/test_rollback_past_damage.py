"""Rollbacks that find the newest checkpoint damaged. Runs of one rank, in this process."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from data_pipeline.io.object_store import object_names, read_object
from pretrain import train
from pretrain.checkpoint.store import checkpoints
from pretrain.run.events import read_disturbances
from pretrain.training.guard import Guard
from tests.command_line import BUCKET, Maskmill
from tests.run_ends import final

# what DeepSpeed's imports give rise to in a process of pytest's
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

RUN = ["run.ranks=1", "train.on_nan=rollback", "train.checkpoint_every=4"]
PHASES = "extends: demo\nphases:\n  - {name: one, train: {steps: 4}}\n  - {name: two, train: {steps: 4}}\n"


@contextmanager
def refused(batch: int, before: Callable[[], None]) -> Iterator[None]:
    """The guard takes no part of this global batch, and just before it says so, something happens."""
    accepts, seen = Guard.accepts, count()

    def judged(guard: Guard) -> bool:
        if next(seen) != batch:
            return accepts(guard)
        before()
        return False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Guard, "accepts", judged)
        yield


def damage(run: Path, step: int) -> None:
    """Changes a byte of a checkpoint, once it is there."""
    wait(lambda: checkpoints(run)[-1:] == [run / "checkpoints" / f"step-{step:08d}"])
    path = checkpoints(run)[-1] / "fragments-00000.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")


def wait(until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def names(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").glob("step-*"))


def events(run: Path) -> str:
    return "\n".join(event["text"] for event in read_disturbances(run))


def test_stopped_before_the_step_of_the_damaged_one_it_is_saved(
    here: None, tiny: list[str], maskmill: Maskmill, tmp_path: Path
) -> None:
    """Exit code 3 says so. The damaged one no longer counts as the newest: retention would keep it for another."""
    run = tmp_path / "run"

    def damaged_and_stopped() -> None:
        damage(run, 4)
        os.kill(os.getpid(), signal.SIGTERM)

    watched, first = [], train.first_checkpoint

    def noted(run: train.Run) -> None:
        watched.append(signal.getitimer(signal.ITIMER_REAL)[0] > 0)
        first(run)

    command = ["train", "demo", *tiny, *RUN, "train.steps=8", f"run.dir={run}"]
    with refused(5, before=damaged_and_stopped), pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "first_checkpoint", noted)
        said = maskmill(*command, code=3).stdout
    assert watched == [True], "a first save that hangs is a hang like any other"
    stopped = final(run)
    assert 0 < stopped.step < 4
    assert f"stopped at step {stopped.step};" in said
    assert stopped.state["position"]["skipped"] == [0, 1, 2, 3, 4, 5]
    assert names(run) == ["step-00000000", f"step-{stopped.step:08d}", "step-00000004.damaged"]
    assert "set aside as step-00000004.damaged, falling back to step-00000000" in events(run)
    assert f"resuming from step {stopped.step} (bit-exact" in maskmill(*command).stdout
    assert final(run, 8).state["position"]["skipped"] == [0, 1, 2, 3, 4, 5]


def test_its_copy_in_the_mirror_takes_its_place(
    endpoint: str, here: None, tiny: list[str], maskmill: Maskmill, tmp_path: Path
) -> None:
    run, mirror = tmp_path / "run", f"s3://{BUCKET}/rolled-back"

    def copied() -> bool:
        there = "latest" in object_names(f"{mirror}/checkpoints")
        return there and read_object(f"{mirror}/checkpoints/latest").startswith(b"step-00000004.")

    def damaged() -> None:
        wait(copied)
        damage(run, 4)

    with refused(5, before=damaged):
        settings = [*tiny, *RUN, "train.steps=6", f"checkpoint.mirror={mirror}", f"run.dir={run}"]
        maskmill("train", "demo", *settings)
    assert f"fetched the checkpoint of step 4, which is not whole here, from {mirror}" in events(run)
    assert final(run, 6).state["position"]["skipped"] == [4, 5]


def test_one_of_the_phase_before_is_for_the_next_start(
    here: None, tiny: list[str], maskmill: Maskmill, tmp_path: Path
) -> None:
    """In this one it would be trained with the rate, the data and the batches of another."""
    run, recipe = tmp_path / "run", tmp_path / "phases.yaml"
    recipe.write_text(PHASES)
    shared = [setting for setting in tiny if not setting.startswith("train.steps=")]
    command = ["train", str(recipe), *shared, "run.ranks=1", "train.on_nan=rollback", f"run.dir={run}"]
    with refused(4, before=lambda: damage(run, 4)):
        told = maskmill(*command, code=2).stderr
    assert told.count("maskmill: ") == 1
    assert (
        "step-00000002: the newest whole checkpoint is of a phase before two, which begins behind step 4"
        in told
    )
    assert "rerun the same command to resume from there" in told
    assert "resuming from step 2 of phase one (bit-exact" in maskmill(*command).stdout
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    trained = [(line["step"], line["phase"]) for line in lines if line["kind"] == "train"]
    assert trained == [(step, "one" if step <= 4 else "two") for step in range(1, 9)]
    assert all(line["lr"] >= 0 for line in lines if line["kind"] == "train")
