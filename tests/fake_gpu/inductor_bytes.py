"""Count what the kernels that Inductor has generated read and write in the device's memory, from their launches."""

from typing import Any

import torch
from torch._inductor.runtime.triton_heuristics import CachingAutotuner

READ_AND_WRITTEN = "in_out_ptr"
"""How Inductor names the parameters of tensors that a kernel reads and overwrites."""


class Traffic:
    """Bytes since the process began.

    Of each launch every tensor among its arguments counts once with all its elements, read or written, and twice where
    the kernel reads and overwrites it. So it is what a device without a cache would move at least, for kernels that
    take whole tensors, as those of a layer do; of a table of which a kernel looks up some rows all rows count. Matrix
    products, attention and kernels that torch brings are no kernels of Inductor's."""

    def __init__(self) -> None:
        self.bytes = 0
        run = CachingAutotuner.run

        def counted(kernel: Any, *arguments: Any, **named: Any) -> Any:
            for name, value in zip(kernel.fn.arg_names, arguments, strict=False):  # those of a grid come last
                if isinstance(value, torch.Tensor):
                    times = 2 if name.startswith(READ_AND_WRITTEN) else 1
                    self.bytes += times * value.numel() * value.element_size()
            return run(kernel, *arguments, **named)

        CachingAutotuner.run = counted  # type: ignore[method-assign]
