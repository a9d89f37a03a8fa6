"""AdamW without torch's wrappers against AdamW with them. What it is for: tests/unit/launch/test_start_up.py."""

import torch
from torch import nn

from pretrain.optim.flat_layout import AdamW


def test_adamw_is_torchs_bit_for_bit() -> None:
    torch.manual_seed(0)
    start = [torch.randn(7, 5), torch.randn(3)]
    gradients = [[torch.randn_like(x) for x in start] for _ in range(4)]
    ended = []
    for kind in (AdamW, torch.optim.AdamW):
        weights = [nn.Parameter(x.clone()) for x in start]
        groups = [{"params": weights[:1], "weight_decay": 0.1}, {"params": weights[1:], "weight_decay": 0.0}]
        optimizer = kind(groups, lr=0.1, betas=(0.8, 0.95), eps=1e-5, fused=True)
        for step in gradients:
            optimizer.zero_grad()
            for weight, gradient in zip(weights, step, strict=True):
                weight.grad = gradient.clone()
            optimizer.step()
        assert all(not optimizer.state[x]["exp_avg"].requires_grad for x in weights)
        ended.append([*weights, *(optimizer.state[x]["exp_avg_sq"] for x in weights)])
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*ended, strict=True))
