"""Read a process's place among the ranks from its launcher's environment, and resolve train.precision for a device.

Supports torchrun, the deepspeed launcher, Slurm's `srun`, or none (a single process). No other module works out a
place from these variables. Torch is imported only by `dtype_of`, and where device files make a GPU possible.
"""

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_pipeline.errors import UserError
from pretrain.config.settings import RunConfig

if TYPE_CHECKING:
    import torch


SUPERVISOR = "MASKMILL_SUPERVISOR"
"""Environment variable of a rank, or of a training that a study starts: the process that it must not outlive."""
DEFAULT_PORT = 29500
"""Where rank 0 listens if the launcher names no port."""


def place(variables: Mapping[str, str]) -> dict[str, Any]:
    """Return this process's rank, size, local_rank, local_size and node, and rank 0's address and port, by name; {}
    for a single process. Raises UserError for missing or non-numeric variables."""
    if "RANK" in variables and "WORLD_SIZE" in variables:
        return _from_launcher(variables)
    return _from_slurm(variables) if _is_slurm_task(variables) else {}


def is_launched(environment: Mapping[str, str] | None = None) -> bool:
    """Return whether torchrun, deepspeed or `srun` started this process as a rank."""
    variables = os.environ if environment is None else environment
    if "RANK" in variables and "WORLD_SIZE" in variables:
        return True
    return _is_slurm_task(variables) and _number(variables, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS") > 1


def is_checked(environment: Mapping[str, str]) -> bool:
    """Return whether this rank was started by `maskmill train`, which has checked the run before."""
    return SUPERVISOR in environment and is_launched(environment)


def first_rank() -> bool:
    """Return whether this process is the one that prints: the first rank, or none."""
    return os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0"


def _from_launcher(variables: Mapping[str, str]) -> dict[str, Any]:
    """Read the variables of torchrun or DeepSpeed's launcher (LOCAL_SIZE, CROSS_RANK)."""
    size = _number(variables, "WORLD_SIZE")
    local_size = _number(variables, "LOCAL_WORLD_SIZE", "LOCAL_SIZE", default=size)
    rank = _number(variables, "RANK")
    return {
        "rank": rank,
        "size": size,
        "local_rank": _number(variables, "LOCAL_RANK", default=rank % local_size),
        "local_size": local_size,
        "node": _number(variables, "GROUP_RANK", "CROSS_RANK", default=rank // local_size),
        "address": variables.get("MASTER_ADDR", "127.0.0.1"),
        "port": _number(variables, "MASTER_PORT", default=DEFAULT_PORT),
    }


def _is_slurm_task(variables: Mapping[str, str]) -> bool:
    """Return whether `srun` started this process. A batch script has SLURM_PROCID too, but is a single process."""
    in_step = "SLURM_STEP_ID" in variables or "SLURM_JOB_ID" not in variables
    return in_step and "SLURM_PROCID" in variables and "SLURM_NTASKS" in variables


def _from_slurm(variables: Mapping[str, str]) -> dict[str, Any]:
    size = _number(variables, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    node = _number(variables, "SLURM_NODEID", default=0)
    nodes = _number(variables, "SLURM_STEP_NUM_NODES", "SLURM_NNODES", default=1)
    counts = variables.get("SLURM_STEP_TASKS_PER_NODE") or variables.get("SLURM_TASKS_PER_NODE")
    per_node = _tasks_per_node(counts) if counts else [-(-size // nodes)]
    job = _number(variables, "SLURM_JOB_ID", default=0)
    step = _number(variables, "SLURM_STEP_ID", default=0)
    return {
        "rank": _number(variables, "SLURM_PROCID"),
        "size": size,
        "local_rank": _number(variables, "SLURM_LOCALID", default=0),
        "local_size": per_node[min(node, len(per_node) - 1)],
        "node": node,
        "address": variables.get("MASTER_ADDR") or _first_host(variables),
        # The same on all ranks; below the range of ephemeral ports.
        "port": _number(variables, "MASTER_PORT", default=20_000 + (job * 16 + step) % 10_000),
    }


def srun_cores(variables: Mapping[str, str], local_size: int) -> tuple[int, bool]:
    """Return the cores that srun gave this rank, and whether its --cpus-per-task stated them; else they are its share
    of the step's cores on this node, where `local_size` ranks are. 0 outside srun, and where Slurm does not say."""
    if "RANK" in variables:  # another launcher's, within a job
        return 0, False
    stated, of_step = (
        int(word) if word.isdecimal() else 0
        for word in (variables.get("SLURM_CPUS_PER_TASK", ""), variables.get("SLURM_CPUS_ON_NODE", ""))
    )
    if stated or not _is_slurm_task(variables):
        return stated, stated > 0
    return of_step // local_size, False


def _tasks_per_node(counts: str) -> list[int]:
    """Expand Slurm's short form, for example `4(x2),3`, to one number per node."""
    numbers: list[int] = []
    for part in counts.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if not match:
            raise UserError(
                f"SLURM_TASKS_PER_NODE={counts}", where="launcher", expected="for example 4(x2),3"
            )
        numbers += [int(match[1])] * int(match[2] or 1)
    return numbers


def _first_host(variables: Mapping[str, str]) -> str:
    """Return rank 0's node: the first of the step's node list, expanded by scontrol."""
    nodes = variables.get("SLURM_STEP_NODELIST") or variables.get("SLURM_JOB_NODELIST", "")
    if nodes and not re.search(r"[\[,]", nodes):
        return nodes
    try:
        command = ["scontrol", "show", "hostnames", nodes]
        lines = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split()
        if nodes and lines:
            return lines[0]
    except (OSError, subprocess.SubprocessError):
        pass  # no scontrol on this node: the next source
    address = variables.get("SLURM_LAUNCH_NODE_IPADDR", "")
    if not address:
        raise UserError(
            "the node of rank 0 is unknown: no scontrol here, and no SLURM_LAUNCH_NODE_IPADDR",
            where="launcher",
            remedy="set MASTER_ADDR in the batch script",
        )
    return address


def _number(variables: Mapping[str, str], *names: str, default: int | None = None) -> int:
    for name in names:
        if name in variables:
            try:
                return int(variables[name])
            except ValueError:
                raise UserError(
                    f"{name}={variables[name]}", where="launcher", expected="a whole number"
                ) from None
    if default is None:
        raise UserError(
            f"{names[0]} is not set", where="launcher", remedy="start the ranks with torchrun or srun"
        )
    return default


# The precision of the weights, and whether there are GPUs.


DEVICE_FILES = ("/dev/nvidiactl", "/dev/nvhost-ctrl", "/dev/dxg", "/dev/kfd")
"""What CUDA and ROCm open first: NVIDIA's driver, Tegra's, Windows' under WSL, AMD's."""


def resolve_precision(config: RunConfig, device: str) -> str:
    """Resolve `train.precision` to fp32, bf16 or fp16 for this type of device: what weights are in."""
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
