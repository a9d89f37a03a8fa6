"""StableAdamW against Algorithm 2 of arXiv 2304.13013 written down in float64, with the paper's growing betas."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from pretrain.config.settings import OptimSettings
from pretrain.optim.lamb import StableAdamW

LR, BETAS, EPS, DECAY, STEPS = 0.01, (0.9, 0.98), 1e-6, 0.1, 12
Gradients = Callable[[int, str], np.ndarray]
SHAPES = {"matrix": (5, 7), "vector": (11,), "one": (1,)}


def gradient(step: int, name: str) -> np.ndarray:
    """Every fourth is much larger: a second moment that lags behind, as before a spike of the loss."""
    draws = np.random.RandomState(100 * step + len(name))
    return draws.randn(*SHAPES[name]) * (50.0 if step % 4 == 3 else 1.0)


def paper() -> tuple[dict[str, np.ndarray], list[float]]:
    """The weights after all steps, and the RMS of each tensor and step."""
    weights = {name: np.ones(shape) for name, shape in SHAPES.items()}
    v, u = ({name: np.zeros(shape) for name, shape in SHAPES.items()} for _ in range(2))
    seen = []
    for t in range(1, STEPS + 1):
        beta1, beta2 = (b * (1 - b ** (t - 1)) / (1 - b**t) for b in BETAS)
        for name, w in weights.items():
            g = gradient(t - 1, name)
            v[name] = beta1 * v[name] + (1 - beta1) * g
            u[name] = beta2 * u[name] + (1 - beta2) * g**2
            rms = math.sqrt(np.mean(g**2 / np.maximum(u[name], EPS**2)))
            rate = LR / max(1.0, rms)
            decay = DECAY if w.ndim > 1 else 0.0
            weights[name] = w - rate * decay * w - rate * v[name] / (np.sqrt(u[name]) + EPS)
            seen.append(rms)
    return weights, seen


def ours(dtype: torch.dtype) -> dict[str, nn.Parameter]:
    parameters = {name: nn.Parameter(torch.ones(shape, dtype=dtype)) for name, shape in SHAPES.items()}
    groups = [
        {"params": [p for p in parameters.values() if p.ndim > 1], "weight_decay": DECAY},
        {"params": [p for p in parameters.values() if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = StableAdamW(groups, OptimSettings(lr=LR, betas=[*BETAS], eps=EPS))
    for step in range(STEPS):
        for name, parameter in parameters.items():
            parameter.grad = torch.from_numpy(gradient(step, name)).to(dtype)
        optimizer.step()
    return parameters


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
def test_it_is_the_papers(dtype: torch.dtype, tolerance: float) -> None:
    expected, seen = paper()
    assert max(seen) > 2, "some rates are lowered"
    assert min(seen) < 0.9, "and some would be raised, were it not for the 1"
    for name, found in ours(dtype).items():
        np.testing.assert_allclose(found.detach().numpy(), expected[name], rtol=tolerance, atol=tolerance)


def test_zero_gradients_leave_the_weights() -> None:
    """Also with eps=0, where v and eps^2 are both 0."""
    weights = nn.Parameter(torch.ones(4))
    for eps in (1e-6, 1e-30):
        optimizer = StableAdamW([weights], OptimSettings(lr=0.1, eps=eps, weight_decay=0.0))
        weights.grad = torch.zeros(4)
        optimizer.step()
        assert torch.equal(weights.detach(), torch.ones(4))
