"""Muon with `optim.muon_precision=bf16` beside torch.optim.Muon, through DeepSpeed on one rank."""

from typing import Any

import pytest
import torch
from ranks import run
from test_zero_lamb import DECAY, assemble, build, config, pieces, train
from toy_model import Toy, global_batch, learning_rate, micro_batches, toy_model

from pretrain.distributed.world import World

pytestmark = [pytest.mark.slow, pytest.mark.multirank]

STEPS = 10
MATRICES = ["inner.weight", "outer.weight"]


def differences(stage: int, precision: str) -> list[float]:
    """The largest difference of a matrix from torch's after each step. Its gradients are taken anew at the engine's
    weights, since AdamW, which steps all the rest, is equal to torch's within rounding only."""
    world = World.from_environment().start()
    settings = config(stage, optimizer="muon", clip=0.0)
    settings.optim.muon_precision = precision
    engine, plain = build(world, settings), toy_model()
    named = dict(plain.named_parameters())
    theirs: Any = torch.optim.Muon(
        [named[name] for name in MATRICES], weight_decay=DECAY, adjust_lr_fn="match_rms_adamw"
    )
    found = []
    for step in range(STEPS):
        take_gradients(plain, step)
        theirs.param_groups[0]["lr"] = learning_rate(step)
        theirs.step()
        assert all(train(engine, world, range(step, step + 1)))
        ours = assemble([pieces(engine)], engine.partition.shapes)
        stepped = {
            name: torch.from_numpy(ours["master", name]).view_as(w)
            for name, w in named.items()
            if w.requires_grad
        }
        found.append(max(float((stepped[name] - named[name]).detach().abs().max()) for name in MATRICES))
        with torch.no_grad():
            for name, values in stepped.items():
                named[name].copy_(values)
    engine.close()
    world.stop()
    return found


def take_gradients(model: Toy, step: int) -> None:
    """Take those of the step's whole batch."""
    model.zero_grad()
    batch = global_batch(step)
    for part, extra, _ in micro_batches(batch, 0, 1, step):
        (model(*part, extra) * (1 / float(batch[2].sum()))).backward()


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_in_bf16_it_is_torchs_to_the_bit(stage: int) -> None:
    [in_bf16] = run(differences, 1, stage, "bf16")
    assert in_bf16 == [0.0] * STEPS
    [in_fp32] = run(differences, 1, stage, "fp32")
    assert min(in_fp32) > 1e-6, "what another precision would show"
