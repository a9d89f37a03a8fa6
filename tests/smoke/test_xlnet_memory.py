"""XLNet with a memory on the real command line: in order, kept in checkpoints, and moved with its streams."""

from pathlib import Path

import pytest
import torch

from pretrain.checkpoint.store import newest_checkpoint
from tests.command_line import Maskmill
from tests.factories.members import member_settings
from tests.run_ends import assert_bit_equal


@pytest.mark.multirank
def test_a_memory_is_resumed_and_moves_to_another_world_size(
    tiny: list[str], maskmill: Maskmill, tmp_path: Path
) -> None:
    data, whole, parts, moved, off = (
        tmp_path / name for name in ("shards", "whole", "parts", "moved", "off")
    )
    settings = [*tiny, *member_settings("xlnet", maskmill, tmp_path), f"data.out={data}"]
    settings += [
        "data.order=sequential",
        "data.masking=ngram",
        "train.checkpoint_every=0",
    ]
    maskmill("prepare", "demo", *settings)
    settings += ["objective.xlnet.memory_length=100"]  # longer than the examples of two steps
    said = maskmill("train", "demo", *settings, f"run.dir={off}", "data.streams=4", code=2).stderr
    assert "data.order=sequential has 4 streams for train.global_batch=12" in said
    ranks = [*settings, "run.ranks=2"]
    maskmill("train", "demo", *ranks, f"run.dir={whole}")
    for run in (parts, moved):
        maskmill("train", "demo", *ranks, f"run.dir={run}", "run.stop_after=2")
    assert "bit-exact" in maskmill("train", "demo", *ranks, f"run.dir={parts}").stdout
    assert_bit_equal(whole, parts)

    maskmill("train", "demo", *settings, "run.ranks=1", f"run.dir={moved}")
    ends = [newest_checkpoint(run) for run in (whole, moved)]
    states = [end.read("hidden", "memory", 0, 12 * 2 * 100 * 32) for end in ends]  # type: ignore[union-attr]
    assert states[0].any()
    torch.testing.assert_close(*states, rtol=0, atol=0.05)  # sums in another order, after four steps of LAMB
    maskmill("train", "demo", *settings, "run.ranks=1", f"run.dir={off}", "objective.xlnet.memory_length=0")
    without = newest_checkpoint(off)
    assert without is not None
    name = "encoder.layers.0.attention.query.weight"
    assert not torch.equal(without.tensor(name), ends[1].tensor(name))  # type: ignore[union-attr]
