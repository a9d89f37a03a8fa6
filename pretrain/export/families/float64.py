"""Run a model of transformers in float64 where its code computes parts in float32 whatever the dtype."""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class KeepFloat64(TorchFunctionMode):
    """Leave float64 tensors as they are where they would become float32: rotations and RMSNorm of transformers round
    there, and two programs could only be compared to 1e-7. Other dtypes are not touched."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        rounds = func is torch.Tensor.float or (func is torch.Tensor.to and args[1:] == (torch.float32,))
        if rounds and not kwargs and args[0].dtype == torch.float64:
            return args[0]
        return func(*args, **(kwargs or {}))
