"""Choose where and how precisely an encoder is computed."""

from contextlib import AbstractContextManager
from typing import Any

import torch


def chosen_device() -> torch.device:
    """Return the first GPU, or the CPU where there is none."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def precision(wanted: str, device: torch.device) -> AbstractContextManager[Any]:
    """Return the autocast of a forward pass: bf16, or none for fp32; auto is bf16 on CUDA."""
    return torch.autocast(device.type, torch.bfloat16, enabled=_resolved(wanted, device) == "bf16")


def _resolved(wanted: str, device: torch.device) -> str:
    return wanted if wanted != "auto" else "bf16" if device.type == "cuda" else "fp32"


def conditions(wanted: str) -> dict[str, Any]:
    """Return what a score's last digits depend on: the precision, the CPU threads and the device."""
    device = chosen_device()
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        name = f"CPU with {torch.backends.cpu.get_cpu_capability()}"
    return {"precision": _resolved(wanted, device), "threads": torch.get_num_threads(), "device": name}


def use_threads(threads: int) -> None:
    """Compute with so many CPU threads; 0: as many as there are cores."""
    if threads:
        torch.set_num_threads(threads)
