"""Look up or measure the peak FLOP/s of a device."""

import time

import torch

from pretrain.preflight.gpus import data_sheet


def peak_flops(device: torch.device, stated_tflops: float) -> float:
    """Return the peak operations per second of one rank's device: stated, known by name, or measured on a CPU with this
    rank's threads (fp32 matrix product, 1024 cubed); 0 if unknown."""
    if stated_tflops > 0:
        return stated_tflops * 1e12
    if device.type == "cuda":
        sheet = data_sheet(torch.cuda.get_device_name(device))
        return sheet.half_tflops * 1e12 if sheet else 0.0
    a, b = torch.rand(1024, 1024), torch.rand(1024, 1024)
    best = float("inf")
    for _ in range(5):
        started = time.perf_counter()
        torch.mm(a, b)
        best = min(best, time.perf_counter() - started)
    return 2 * 1024**3 / best


def peak_source(device: torch.device, stated_tflops: float) -> str:
    """Return the source of `peak_flops`: stated, data sheet, measured or unknown."""
    if stated_tflops > 0:
        return "stated"
    if device.type != "cuda":
        return "measured"
    return "data sheet" if peak_flops(device, 0.0) else "unknown"
