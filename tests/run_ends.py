"""How runs ended: their newest checkpoint, and whether two of them are the same to the bit."""

import json
from pathlib import Path
from typing import Any

from pretrain.checkpoint.store import Checkpoint, newest_checkpoint

KINDS = ("master", "exp_avg", "exp_avg_sq")


def final(run: Path, step: int | None = None) -> Checkpoint:
    """The newest checkpoint of `run`, which is that of `step`."""
    checkpoint = newest_checkpoint(run)
    assert checkpoint is not None, f"{run} has no checkpoint"
    assert step in (None, checkpoint.step), f"{run} came to step {checkpoint.step}, not {step}"
    return checkpoint


def assert_same_weights(one: Path, two: Path) -> None:
    """Of their newest checkpoints step, shapes, weights and both moments are equal, bit for bit."""
    assert final(one).step == final(two).step
    assert_same_tensors(final(one), final(two))


def assert_same_tensors(one: Checkpoint, two: Checkpoint) -> None:
    """Shapes, weights and both moments are equal, bit for bit."""
    assert one.shapes == two.shapes
    kept = [
        key for key in one._fragments() if key[1] in one.shapes
    ]  # Muon has one moment of a matrix, and no second
    assert {kind for kind, _ in kept} >= {*KINDS}
    assert one._fragments().keys() == two._fragments().keys()
    for kind, name in kept:
        if kind in KINDS:
            assert one.tensor(name, kind).equal(two.tensor(name, kind)), (
                f"{two.folder}: {kind} of {name} differs"
            )


def assert_bit_equal(one: Path, two: Path) -> None:
    """The same, and all counters."""
    assert_same_weights(one, two)
    assert final(one).state["position"] == final(two).state["position"]


def assert_learns(run: Path, first: int, last: int) -> None:
    """The training loss is lower at step `last` than at step `first`."""
    assert metrics_at(run, "train", last)["loss"] < metrics_at(run, "train", first)["loss"]


def metrics_at(run: Path, kind: str, step: int) -> dict[str, Any]:
    """The last line of metrics.jsonl of this kind and step."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if (line["kind"], line["step"]) == (kind, step)][-1]
