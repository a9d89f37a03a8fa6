"""Steps that look once whether their gradient is finite, beside DeepSpeed's own steps: equal to the last bit."""

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from ranks import run
from test_engine import allow_fp16_on_cpu
from test_zero_lamb import build, config, pieces, train

from pretrain.distributed import deepspeed_patches
from pretrain.distributed.world import World

pytestmark = [pytest.mark.slow, pytest.mark.multirank]

CELLS = [(0, "bf16"), (1, "fp32"), (1, "fp16"), (2, "bf16"), (2, "fp32")]
POISONS = (1.0, 1.0, float("inf"), 1.0, float("nan"), 1e30, 1.0)
"""What the loss of each step is multiplied by; the sixth makes a finite gradient whose norm is none in fp32."""


def steps(world: World, stage: int, precision: str) -> dict[str, Any]:
    """What these steps leave: which were applied, norms, loss scales and the pieces of weights and moments."""
    engine = build(world, config(stage, precision, clip=0.5))
    engine.load_scaler_state({"cur_scale": 256.0})
    found: dict[str, Any] = {"applied": [], "norms": [], "scales": []}
    for number, poison in enumerate(POISONS):
        found["applied"] += train(engine, world, range(number, number + 1), poison=poison)
        found["norms"].append(engine.grad_norm)
        found["scales"].append(engine.loss_scale)
    found["pieces"] = pieces(engine)
    engine.close()
    return found


def both_ways() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """DeepSpeed's way first: its function that marks norms is replaced for good."""
    allow_fp16_on_cpu()
    world = World.from_environment().start()
    with patch.object(deepspeed_patches, "skip_overflow_scan", lambda _: None):
        often = [steps(world, *cell) for cell in CELLS]
    return list(zip(often, [steps(world, *cell) for cell in CELLS], strict=True))


def test_looking_once_leaves_every_bit() -> None:
    for rank in run(both_ways, 2):
        for cell, (often, once) in zip(CELLS, rank, strict=True):
            assert often["applied"][:5] == [True, True, False, True, False], cell
            for name in ("applied", "norms", "scales"):
                assert often[name] == once[name], (cell, name)
            assert often["pieces"].keys() == once["pieces"].keys()
            for key, values in often["pieces"].items():
                assert np.array_equal(values, once["pieces"][key]), (cell, key)
