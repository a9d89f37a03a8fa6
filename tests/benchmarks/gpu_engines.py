"""The engines that bench_gpu.py steps: DeepSpeed's, and the same work without it."""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from pretrain.config.settings import RunConfig
from pretrain.distributed.launch_env import dtype_of
from pretrain.distributed.world import World
from pretrain.optim.base import build_optimizer


class PlainEngine:
    """The steps of the DeepSpeed engine on one device without it: weights in half precision, all else in fp32."""

    def __init__(self, model: nn.Module, config: RunConfig, precision: str, device: torch.device) -> None:
        self.module = model.to(device)
        parameters = list(model.parameters())
        self._masters = [p.detach().clone().requires_grad_() for p in parameters]
        self.module.to(dtype_of(precision))
        self._weights, self._clip = list(self.module.parameters()), config.train.clip
        by_weight = dict(zip(map(id, self._weights), self._masters, strict=True))
        self._optimizer = build_optimizer(self.module, config.optim)
        for group in self._optimizer.param_groups:
            group["params"] = [by_weight[id(p)] for p in group["params"]]

    def __call__(self, batch: Any) -> Any:
        return self.module(batch)

    def backward(self, loss: Tensor, *, last: bool) -> None:
        loss.backward()
        for master, weight in zip(self._masters, self._weights, strict=True):
            if weight.grad is not None:
                gradient = weight.grad.float()
                master.grad = gradient if master.grad is None else master.grad.add_(gradient)
                weight.grad = None

    def step(self) -> None:
        gradients = [m.grad for m in self._masters if m.grad is not None]
        norm = torch.stack(torch._foreach_norm(gradients)).norm()
        torch._foreach_mul_(gradients, (self._clip / (norm + 1e-6)).clamp(max=1.0))
        self._optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(self._weights, self._masters)
        for master in self._masters:
            master.grad = None

    def close(self) -> None:
        """Nothing to do."""


def engine_of(name: str, model: nn.Module, config: RunConfig, precision: str, device: torch.device) -> Any:
    """Build the engine of this name: plain or deepspeed."""
    if name == "plain":
        return PlainEngine(model, config, precision, device)
    from pretrain.distributed.engine import build_engine  # needs DeepSpeed

    return build_engine(model, config, _world())


@cache
def _world() -> World:
    """A process joins its group once."""
    return World.from_environment().start()
