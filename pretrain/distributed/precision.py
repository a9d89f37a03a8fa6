"""Resolve train.precision and look for GPUs; torch is imported only where device files make a GPU possible."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.config.settings import FP8, RunConfig

if TYPE_CHECKING:
    import torch

DEVICE_FILES = ("/dev/nvidiactl", "/dev/nvhost-ctrl", "/dev/dxg", "/dev/kfd")
"""What CUDA and ROCm open first: NVIDIA's driver, Tegra's, Windows' under WSL, AMD's."""


def resolve_precision(config: RunConfig, device: str) -> str:
    """Resolve `train.precision` to fp32, bf16 or fp16 for this type of device: what weights are in. Those that multiply
    in FP8 are in bf16."""
    if config.train.precision == FP8:
        return "bf16"
    if config.train.precision != "auto":
        return config.train.precision
    return "bf16" if device == "cuda" else "fp32"


def dtype_of(precision: str) -> "torch.dtype":
    """Return torch's type of a resolved precision."""
    import torch

    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]


def sees_gpus(device_files: Sequence[str] = DEVICE_FILES) -> bool:
    """Return whether torch sees a GPU. Imports torch, which takes seconds, only if there may be one."""
    none = sys.platform == "linux" and not any(Path(file).exists() for file in device_files)
    if none and "torch" not in sys.modules:
        return False
    import torch

    return bool(torch.cuda.is_available())
