"""Copy arrays that are made for one micro-batch to its device."""

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Return the array as a tensor on `device`; on a CPU it shares the array's memory.

    To a GPU by way of page-locked memory, which torch keeps until the copy is done: a copy of any other memory makes
    the host wait until the device has finished all that it was given before."""
    tensor = torch.from_numpy(array)
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
