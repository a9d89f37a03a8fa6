"""Keep torch's optimizers from importing torch.compile, which takes more than a second on each rank.

torch wraps methods of its optimizers so that code compiled around them leaves them out, and the wrappers import the
compiler at their first call, whether anything is compiled or not. A run compiles its model and never its optimizer.
"""

from inspect import unwrap

import torch
from torch.optim import Optimizer


class Uncompiled(Optimizer):
    """An optimizer without those wrappers around what a run calls."""

    add_param_group = unwrap(Optimizer.add_param_group)
    zero_grad = unwrap(Optimizer.zero_grad)


class AdamW(Uncompiled, torch.optim.AdamW):
    """torch's AdamW, bit for bit, whose step computes no gradient of its own (`differentiable`)."""

    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))
