"""Use what torch keeps private: here and nowhere else, and checked, so that a torch that has changed it says so.

| name                            | what it is for                             | why not a public one                 |
|---------------------------------|--------------------------------------------|--------------------------------------|
| `torch._softmax_backward_data`  | the gradient of a softmax in one pass      | autograd keeps what is made anew     |
| `aten._flash_attention_forward` | attention over packed examples, dropout    | `varlen_attn` has no dropout         |
| `torch._foreach_mul_`           | scale many gradients in one launch         | `clip_grad_norm_` takes the norm anew |
| `torch._dynamo.mark_dynamic`    | one graph for any number of examples       | `dynamic=True` frees every size      |
| `torch._inductor.async_compile` | end what compiled (pytorch#162199)         | there is none                        |
| `torch.utils._python_dispatch`  | every tensor that a pass makes: memory     | there is none                        |
| `torch.utils._pytree`           | the tensors in nested arguments            | there is none                        |

pyproject.toml allows several versions of torch; `make test-torch` runs on each of them what depends on this module.
"""

import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = [
    "TorchDispatchMode",
    "flash_attention",
    "mark_dynamic",
    "scale_all",
    "softmax_gradient",
    "stop_compile_workers",
    "tree_leaves",
]

OPERATORS = {
    "_softmax_backward_data": "grad_output output dim input_dtype",
    "_flash_attention_forward": (
        "query key value cum_seq_q cum_seq_k max_q max_k dropout_p is_causal return_debug_mask window_size_left "
        "window_size_right"
    ),
    "_foreach_mul_": "self scalar",
}
"""Operators of aten, and the arguments that are given here, by place or by name."""


def check_operators(operators: Any = None) -> None:
    """Raise RuntimeError unless each of OPERATORS is in this torch, with the arguments that it is given here in the
    same order. `operators`: `torch.ops.aten`."""
    for name, arguments in OPERATORS.items():
        packet = getattr(operators or torch.ops.aten, name, None)
        schemas = [getattr(packet, overload)._schema for overload in packet.overloads()] if packet else []
        given = arguments.split()
        known = [[argument.name for argument in schema.arguments] for schema in schemas]
        if not any([one for one in names if one in given] == given for names in known):
            raise RuntimeError(f"torch {torch.__version__} has no operator {name}({', '.join(given)})")


def checked(function: Callable[..., Any], *parameters: str) -> Callable[..., Any]:
    """Return a private function. Raises RuntimeError unless its parameters begin with these."""
    found = list(inspect.signature(function).parameters)
    if found[: len(parameters)] != list(parameters):
        raise RuntimeError(
            f"torch {torch.__version__}: {function.__qualname__}({', '.join(found)}) (expected {', '.join(parameters)})"
        )
    return function


def softmax_gradient(gradient: Tensor, probabilities: Tensor) -> Tensor:
    """Return the gradient of a softmax over the last dimension at what went into it."""
    return torch._softmax_backward_data(gradient, probabilities, -1, probabilities.dtype)


def flash_attention(
    qkv_TND: tuple[Tensor, Tensor, Tensor],
    cu_seqlens: Tensor,
    max_length: int,
    dropout: float,
    causal: bool,
    window: tuple[int | None, int | None],
) -> Tensor:
    """Return the attention (tokens, heads, head size) of packed examples that begin at `cu_seqlens`; `window`:
    positions that are seen to the left and to the right, None: all."""
    lengths = (cu_seqlens, cu_seqlens, max_length, max_length)
    left, right = window
    return torch.ops.aten._flash_attention_forward(
        *qkv_TND, *lengths, dropout, causal, False, window_size_left=left, window_size_right=right
    )[0]


def scale_all(tensors: Sequence[Tensor], factor: float) -> None:
    """Multiply all tensors by one number, in place."""
    torch._foreach_mul_(list(tensors), factor)


def mark_dynamic(tensor: Tensor, dimension: int) -> None:
    """Let a graph that is compiled with this tensor take any length of the dimension. Imports the compiler."""
    checked(torch._dynamo.mark_dynamic, "t", "index")(tensor, dimension)


def stop_compile_workers() -> None:
    """End the processes that have compiled kernels: until torch 2.13 some do not end by themselves, and the run's last
    act would be to wait five minutes for them (pytorch#162199). Later compilation starts new ones."""
    from torch._inductor import async_compile

    # it would warn that it cannot tell them to end
    logging.getLogger("torch._inductor.compile_worker.subproc_pool").setLevel(logging.ERROR)
    for pool in async_compile._pool_set:
        if process := getattr(pool, "process", None):
            process.kill()  # its own workers see that, and end
    checked(async_compile.shutdown_compile_workers)()


check_operators()
