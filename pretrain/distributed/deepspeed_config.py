"""Import DeepSpeed quietly, and write its settings for a RunConfig. The only import of deepspeed."""

import logging
import os
import warnings
from typing import Any

import torch
import torch.distributed as dist

from data_pipeline.errors import UserError
from pretrain.config.settings import RunConfig
from pretrain.distributed.world import World

BUCKET_ELEMENTS = 50_000_000
"""Gradient elements per communication bucket: 200 MB in fp32."""

FP8_CAPABILITY = (8, 9)
"""Of the first GPUs that multiply in FP8."""


def refuse_unsupported(
    deepspeed: Any, stage: int, precision: str, world: World, *, fp8: bool = False
) -> None:
    """Raise UserError for a precision that the device, or DeepSpeed at this ZeRO stage, does not support; with `fp8`,
    for a device that does not multiply in FP8."""
    accelerator = deepspeed.accelerator.get_accelerator()
    supported = {
        "fp32": True,
        "bf16": accelerator.is_bf16_supported(),
        "fp16": accelerator.is_fp16_supported(),
    }
    if not supported[precision]:
        raise UserError(
            f"train.precision={precision} does not run on this device", where="settings", remedy="fp32"
        )
    if precision == "bf16" and world.device.type == "cuda":
        capability = torch.cuda.get_device_capability(world.device)
        if capability < (8, 0):  # torch reports support, but emulates it
            raise UserError(
                f"bf16 needs an Ampere GPU or newer, and this one is of capability {capability[0]}.{capability[1]}",
                where="train.precision",
                remedy="train.precision=fp16 (with zero.stage=1 or more), or fp32",
            )
    if fp8:
        _refuse_fp8(world)
    if stage == 0 and precision == "fp16":
        raise UserError(
            "zero.stage=0 with train.precision=fp16: DeepSpeed does not scale the loss there",
            where="settings",
            remedy="zero.stage=1, or bf16",
        )


def _refuse_fp8(world: World) -> None:
    capability = torch.cuda.get_device_capability(world.device) if world.device.type == "cuda" else (0, 0)
    if capability < FP8_CAPABILITY:
        found = f"capability {capability[0]}.{capability[1]}" if capability[0] else str(world.device)
        raise UserError(
            f"FP8 needs a GPU of capability 8.9 or newer (Ada, Hopper), and this is {found}",
            where="train.precision",
            remedy="train.precision=bf16",
        )


def deepspeed_settings(config: RunConfig, precision: str, zero: dict[str, Any]) -> dict[str, Any]:
    """Build DeepSpeed's configuration. Steps, learning rate and global batch size are handled outside it."""
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,  # only scales losses, which we do: the number of micro-batches may vary
        "gradient_clipping": config.train.clip if config.zero.stage else 0.0,  # at stage 0 we clip
        "communication_data_type": "fp32",
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "timers": {"throughput": {"enabled": False}},
        "zero_optimization": {
            "stage": config.zero.stage,
            "sub_group_size": config.zero.sub_group_size,
            "reduce_bucket_size": BUCKET_ELEMENTS,
            **({"offload_optimizer": {"device": "cpu"}} if config.zero.offload == "cpu" else {}),
            **zero,
        },
    }
    if config.zero.stage > 0:
        settings["data_types"] = {"grad_accum_dtype": "fp32"}
    if precision != "fp32":
        settings[precision] = {"enabled": True}
    if precision == "bf16":  # each gradient is added to its fp32 sum, and freed, as soon as it is there
        settings["bf16"]["immediate_grad_update"] = True
    return settings


def import_deepspeed(world: World) -> Any:
    """Import DeepSpeed with its guesses set explicitly, and silence all but errors."""
    os.environ.setdefault("DS_ACCELERATOR", world.device.type)
    os.environ["LOCAL_RANK"] = str(
        world.device.index or 0 if world.device.type == "cuda" else world.local_rank
    )
    os.environ["LOCAL_SIZE"] = str(world.local_size)
    # Warnings from DeepSpeed's own code, which its users cannot fix.
    _silence(Warning, r"deepspeed\b")
    _silence(FutureWarning, r"torch\.distributed\.c10d_logger")
    import deepspeed
    import deepspeed.ops
    import deepspeed.utils.groups as groups

    _import_muon_uncompiled()
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    # On a CPU it would compile (half a minute, with a C++ compiler) an operator that only its inference uses; this
    # table, which DeepSpeed fills on first use, has no other reader.
    vars(deepspeed.ops).setdefault("__compatible_ops__", {})
    if groups._WORLD_GROUP is not None and not _is_alive(groups._WORLD_GROUP):
        groups._release_process_group_references(group=None)  # an earlier run's, in the same process
    return deepspeed


def _import_muon_uncompiled() -> None:
    """Import DeepSpeed's Muon, as it does itself for every optimizer, but leave its functions uncompiled: to compile
    them all of torch.compile is imported, which takes seconds on each rank, and nothing here calls them."""
    from deepspeed.runtime import compiler

    compile_, compiler.compile = compiler.compile, lambda: compiler.dummy_decorator
    try:
        import deepspeed.runtime.zero.muon.muon_optimizer  # noqa: F401
    finally:
        compiler.compile = compile_


def _is_alive(group: Any) -> bool:
    try:
        return bool(dist.get_process_group_ranks(group))
    except (KeyError, ValueError, RuntimeError):
        return False


def _silence(category: type[Warning], module: str) -> None:
    """Silence permanently, not around each call: leaving `catch_warnings` would repeat every other warning."""
    warnings.filterwarnings("ignore", category=category, module=module)
