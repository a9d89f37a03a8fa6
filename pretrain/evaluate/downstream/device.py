"""Choose where and how precisely an encoder is computed."""

from contextlib import AbstractContextManager
from typing import Any

import torch


def chosen_device() -> torch.device:
    """Return the first GPU, or the CPU where there is none."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def precision(wanted: str, device: torch.device) -> AbstractContextManager[Any]:
    """Return the autocast of a forward pass: bf16, or none for fp32; auto is bf16 on CUDA."""
    half = wanted == "bf16" or (wanted == "auto" and device.type == "cuda")
    return torch.autocast(device.type, torch.bfloat16, enabled=half)


def use_threads(threads: int) -> None:
    """Compute with so many CPU threads; 0: as many as there are cores."""
    if threads:
        torch.set_num_threads(threads)
