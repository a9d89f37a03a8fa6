"""Make functions operators of torch, which torch.compile leaves whole.

As torch.library.custom_op does, but for the wrapper that it puts around a function, which imports torch.compile at the
first call, whether anything is compiled or not: more than a second on each rank.
"""

from collections.abc import Callable
from typing import TypeVar

import torch

NAMESPACE = "maskmill"
AnyFunction = TypeVar("AnyFunction", bound=Callable[..., object])


def operator(name: str, *tags: torch.Tag) -> Callable[[AnyFunction], AnyFunction]:
    """Decorate a function of new outputs, which changes no input, as the operator `maskmill::name` for every device.
    Its shapes are told by torch.library.register_fake, and its backward pass by torch.library.register_autograd."""

    def register(function: AnyFunction) -> AnyFunction:
        schema = torch.library.infer_schema(function, mutates_args=())
        qualified = f"{NAMESPACE}::{name}"
        torch.library.define(qualified, schema, tags=(torch.Tag.pt2_compliant_tag, *tags))
        torch.library.impl(qualified, "default", function)
        made: AnyFunction = getattr(getattr(torch.ops, NAMESPACE), name).default
        return made

    return register
