"""XLNet with a memory in real runs: in order, kept in checkpoints, and moved with its streams."""

from pathlib import Path

import pytest
import torch
from attempts import Attempt, run_attempts

from tests.command_line import Maskmill
from tests.factories.members import member_settings
from tests.run_ends import assert_bit_equal, final

pytestmark = [pytest.mark.slow, pytest.mark.multirank]

MEMORY = "objective.xlnet.memory_length=100"
"""Longer than the examples of two steps."""


@pytest.fixture
def settings(tiny: list[str], maskmill: Maskmill, tmp_path: Path) -> list[str]:
    """Those of a run whose shards are ready, read in order."""
    found = [*tiny, *member_settings("xlnet", maskmill, tmp_path), f"data.out={tmp_path}/shards"]
    found += [
        "data.order=sequential",
        "data.both_directions=true",
        "data.masking=ngram",
        "train.checkpoint_every=0",
    ]
    maskmill("prepare", "demo", *found)
    return found


def test_a_memory_is_resumed_and_moves_to_another_world_size(
    settings: list[str], maskmill: Maskmill, tmp_path: Path
) -> None:
    refused = ["data.streams=4", f"run.dir={tmp_path}/off"]
    said = maskmill("train", "demo", *settings, MEMORY, *refused, code=2).stderr
    assert "data.order=sequential has 4 streams for train.global_batch=12" in said

    def attempt(ranks: int, run: str, *more: str, copy_of: str = "") -> Attempt:
        source = str(tmp_path / copy_of) if copy_of else ""
        return Attempt(ranks, [*settings, f"run.dir={tmp_path / run}", *more], copy_of=source)

    seen = run_attempts(
        [
            attempt(2, "whole", MEMORY),
            attempt(2, "parts", MEMORY, "run.stop_after=2"),
            attempt(1, "fewer", MEMORY, copy_of="parts"),
            attempt(3, "more", MEMORY, copy_of="parts"),
            attempt(2, "parts", MEMORY),
            attempt(1, "off", "objective.xlnet.memory_length=0"),
        ]
    )
    assert "bit-exact" in seen[4].output
    assert_bit_equal(tmp_path / "whole", tmp_path / "parts")

    whole, *moved, off = (final(tmp_path / run) for run in ("whole", "fewer", "more", "off"))
    states = [end.read("hidden", "memory", 0, 12 * 2 * 100 * 32) for end in (whole, *moved)]
    assert states[0].any()
    for other in states[1:]:  # sums in another order, after four steps of LAMB
        torch.testing.assert_close(other, states[0], rtol=0, atol=0.05)
    name = "encoder.layers.0.attention.query.weight"
    assert not torch.equal(off.tensor(name), whole.tensor(name))
