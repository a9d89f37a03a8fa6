"""Fit a linear model to vectors of a frozen encoder: the least that can read a task from them.

Both problems are convex, so what is fitted depends on the vectors alone: there is no seed and no order."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

ITERATIONS = 200
"""Of L-BFGS, at most."""
Predict = Callable[[NDArray[np.float32]], NDArray[np.float32]]
"""(examples, width) -> (examples, classes) logits, or (examples, 1) numbers."""


def fit_classes(vectors: NDArray[np.float32], classes: NDArray[np.int64], count: int) -> Predict:
    """Fit multinomial logistic regression to (examples, width) vectors and their classes 0 to count - 1, the weights
    penalised by half their squared norm, as scikit-learn's default does; columns are standardised first."""
    scale = _standardised(vectors)
    rows, targets = scale(vectors), torch.from_numpy(classes)
    with torch.enable_grad():
        weights = torch.zeros(rows.shape[1], count, dtype=torch.float64, requires_grad=True)
        bias = torch.zeros(count, dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.LBFGS([weights, bias], max_iter=ITERATIONS, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            optimizer.zero_grad()
            found = functional.cross_entropy(rows @ weights + bias, targets)
            found = found + weights.square().sum() / (2 * len(rows))
            found.backward()
            return found

        optimizer.step(loss)
    return lambda others: (scale(others) @ weights + bias).detach().float().numpy()


def fit_numbers(vectors: NDArray[np.float32], numbers: NDArray[np.float64]) -> Predict:
    """Fit ridge regression of a number, with penalty 1, to (examples, width) vectors; columns are standardised
    first."""
    scale = _standardised(vectors)
    rows, targets = scale(vectors), torch.from_numpy(numbers)
    mean = targets.mean()
    penalty = torch.eye(rows.shape[1], dtype=torch.float64)
    weights = torch.linalg.solve(rows.T @ rows + penalty, rows.T @ (targets - mean))
    return lambda others: (scale(others) @ weights + mean)[:, None].float().numpy()


def _standardised(vectors: NDArray[np.float32]) -> Callable[[NDArray[np.float32]], Tensor]:
    """Return what brings each column to mean 0 and deviation 1 on these vectors; a constant column becomes 0."""
    rows = torch.from_numpy(vectors).double()
    mean, deviation = rows.mean(0), rows.std(0, correction=0)
    deviation = torch.where(deviation > 1e-12, deviation, torch.inf)
    return lambda others: (torch.from_numpy(others).double() - mean) / deviation
