"""AdamW without torch's wrappers against AdamW with them (what it is for: tests/unit/launch/test_start_up.py), and what
the records say of the optimizers."""

from dataclasses import fields

import pytest
import torch
from torch import nn

from pretrain.config.settings import OptimSettings
from pretrain.optim.base import AdamW, build_optimizer
from pretrain.optim.registry import OPTIMIZERS


def test_adamw_is_torchs_bit_for_bit() -> None:
    torch.manual_seed(0)
    start = [torch.randn(7, 5), torch.randn(3)]
    gradients = [[torch.randn_like(x) for x in start] for _ in range(4)]
    ended = []
    for ours in (True, False):
        weights = [nn.Parameter(x.clone()) for x in start]
        groups = [{"params": weights[:1], "weight_decay": 0.1}, {"params": weights[1:], "weight_decay": 0.0}]
        optimizer = (
            AdamW(groups, OptimSettings(lr=0.1, betas=[0.8, 0.95], eps=1e-5))
            if ours
            else torch.optim.AdamW(groups, lr=0.1, betas=(0.8, 0.95), eps=1e-5, fused=True)
        )
        for step in gradients:
            optimizer.zero_grad()
            for weight, gradient in zip(weights, step, strict=True):
                weight.grad = gradient.clone()
            optimizer.step()
        assert all(not optimizer.state[x]["exp_avg"].requires_grad for x in weights)
        ended.append([*weights, *(optimizer.state[x]["exp_avg_sq"] for x in weights)])
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*ended, strict=True))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_record_says_what_its_optimizer_reads_and_keeps(name: str) -> None:
    read = set()

    class Noted(OptimSettings):
        def __getattribute__(self, key: str) -> object:
            read.add(key)
            return super().__getattribute__(key)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(9, 9), nn.Linear(9, 2))
    optimizer = build_optimizer(model, Noted(name=name))
    every = {"name", "lr", "betas", "eps", "weight_decay", "decoupled_decay"}
    known = {field.name for field in fields(OptimSettings)}
    assert (read & known) | every == every | set(OPTIMIZERS[name].settings)
    model(torch.randn(3, 9)).sum().backward()
    optimizer.step()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            assert set(optimizer.state[parameter]) == {"step", *group["moments"]}
