"""How runs ended: their newest checkpoint, and whether two of them are the same to the bit."""

from pathlib import Path

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
    for name in one.shapes:
        for kind in KINDS:
            assert one.tensor(name, kind).equal(two.tensor(name, kind)), (
                f"{two.folder}: {kind} of {name} differs"
            )


def assert_bit_equal(one: Path, two: Path) -> None:
    """The same, and all counters."""
    assert_same_weights(one, two)
    assert final(one).state["position"] == final(two).state["position"]
