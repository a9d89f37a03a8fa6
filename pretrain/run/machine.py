"""Describe the ranks' machines: devices, hosts, versions, memory."""

import os
import platform
import resource
import socket
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from pretrain.distributed.world import World


def peak_memory(device: torch.device) -> float:
    """Return this rank's peak memory in GB: of the GPU, or of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def machine(world: World) -> dict[str, Any]:
    """Return the first rank's device, hosts, ranks, threads per rank and versions, for summary.json. All ranks call
    this."""
    device = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else cpu_name()
    names = ("torch", "deepspeed", "transformers", "webdataset", "numpy")
    return {
        "device": device,
        "device_type": world.device.type,
        "hosts": sorted(set(world.gather(socket.gethostname()))),
        "ranks": world.size,
        "threads": torch.get_num_threads(),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in names}},
    }


def machine_name() -> str:
    """Return what this process may use: the GPU, if torch sees one, and its cores."""
    cores = f"{len(os.sched_getaffinity(0))} cores ({cpu_name()})"
    return f"{torch.cuda.get_device_name()}, {cores}" if torch.cuda.is_available() else cores


def cpu_name() -> str:
    """Return the processor's name."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
