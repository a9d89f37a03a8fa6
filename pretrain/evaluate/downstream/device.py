"""Choose where and how precisely an encoder is computed."""

from contextlib import AbstractContextManager
from typing import Any

import torch


def chosen_device() -> torch.device:
    """Return the first GPU, or the CPU where there is none."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def precision(wanted: str, device: torch.device, *, fine_tuned: bool) -> AbstractContextManager[Any]:
    """Return the autocast of a forward pass: bf16, or none for fp32. Auto is bf16 on CUDA where a model is
    `fine_tuned`, and fp32 elsewhere: the heads of pretraining are judged by log-probabilities as they are, of BLiMP by
    which of two sums of them is larger, and what rounds counts against the encoder."""
    used = used_precision(wanted, device, fine_tuned=fine_tuned)
    return torch.autocast(device.type, torch.bfloat16, enabled=used == "bf16")


def used_precision(wanted: str, device: torch.device, *, fine_tuned: bool) -> str:
    """Return fp32 or bf16: what `wanted` comes to on a device, see `precision`."""
    return wanted if wanted != "auto" else "bf16" if fine_tuned and _is_gpu(device) else "fp32"


def tokens_per_pass(device: torch.device) -> int:
    """Return how many tokens a forward pass without gradients takes: on a CPU what its caches hold, since 8,192 take up
    to twice as long there (docs/benchmarks.md), elsewhere enough for the device to be busy."""
    return 8192 if _is_gpu(device) else 1024


def _is_gpu(device: torch.device) -> bool:
    return device.type == "cuda"


def conditions() -> dict[str, Any]:
    """Return what a score's last digits depend on beside the precision: the CPU threads and the device."""
    device = chosen_device()
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        name = f"CPU with {torch.backends.cpu.get_cpu_capability()}"
    return {"threads": torch.get_num_threads(), "device": name}


def use_threads(threads: int) -> None:
    """Compute with so many CPU threads; 0: as many as there are cores."""
    if threads:
        torch.set_num_threads(threads)
