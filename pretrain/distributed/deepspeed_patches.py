"""Import DeepSpeed, write its settings, and put right what it does with gradients. The only import of deepspeed.

One release is supported, VERSION: what is put right reads attributes that nobody promises to keep, and replaces
functions. So `import_deepspeed` compares the version, and the source text of each function in SOURCES, and
`check_wrapper` the class and the attributes of what DeepSpeed puts around the optimizer. Anything else is refused.
CONTRIBUTING.md says how to move to another release.

DeepSpeed keeps pieces of gradients between steps, and looks only at the parameters that the last micro-batch used. Call
`complete` before each step and `forget` after it, applied or not. Then a missing gradient counts as zero at every
stage, with and without offload.

| what is wrong without it               | where                   | what puts it right                              |
|----------------------------------------|-------------------------|-------------------------------------------------|
| ranks clip differently (1)             | stage 1 bf16            | `complete` sets flags of what has a gradient    |
| an old gradient is used again (2)      | stage 3                 | `forget` clears the buffer of gradients         |
| this step's gradient is lost (3)       | offload, all stages     | `complete` copies the others to the host        |
| sums keep the last step's (4)          | offload, stages 1 and 2 | `forget` clears the sums                        |
| one step's gradients are halved (5)    | fp16                    | engine.py updates the loss scale after the step |
| a stray step on zero gradients (7)     | stage 0 bf16            | engine.py clears its state, loads the masters   |
| clipping is off by 1e-3                | stage 0                 | engine.py clips                                 |
| sums over micro-batches are in bf16    | stage 0 bf16            | engine.py keeps gradients in fp32               |
| gradients are written out in fp32      | stage 1 bf16            | `add_in_one_pass`: speed                        |
| sums are copied twice for nothing      | stage 1 bf16, one rank  | `keep_sums_of_one_rank`: speed                  |
| a kernel is launched for each tensor   | stage 1 bf16 on a GPU   | `norm_on_flat_buffer`: speed                    |
| the host waits twice or more in a step | all                     | `skip_overflow_scan`: speed (6)                 |
| all of torch.compile is imported       | import                  | `_import_muon_uncompiled`: start-up             |
| a C++ compiler runs for half a minute  | import on a CPU         | `__compatible_ops__` is there: start-up         |
| destroyed process groups are used      | import, again           | `_release_process_group_references`             |

(1) A parameter that a rank did not use is left out of its norm and clipping, though the sum over ranks has a gradient
for it. (2) Of a parameter that is unused in a step, or in its first micro-batch. (3) Of a parameter that is unused in
the last micro-batch; upstream finishes these copies in a mode of its own only (#8225). (4) What is not finite stays for
good; #7967 and #7981 put other parts right. (5) A growing scale is applied before gradients are unscaled. (6) A norm
that is not finite is marked by -1, and the step must refuse that (#8614). (7) In the wrapper's constructor. No issue
was found upstream for 1, 2 and 5.
"""

import hashlib
import inspect
import logging
import os
import sys
import warnings
from functools import reduce
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from data_pipeline.errors import UserError
from pretrain.config.settings import RunConfig
from pretrain.distributed.world import World

VERSION = "0.19.8"
"""The release of DeepSpeed that all of this was tried with."""

SOURCES = {
    "deepspeed.runtime.bf16_optimizer": {
        "BF16_Optimizer.accumulate_hp_grads_and_remove_lp": "4792e4da4c695a7e",
        "BF16_Optimizer._update_hp_grad": "026f6bb3edea2557",
        "BF16_Optimizer.get_grads_for_norm": "81ed7f0b119f7ad8",
        "BF16_Optimizer.step": "9b21d4a28f8714d9",
    },
    "deepspeed.runtime.engine": {
        "DeepSpeedEngine.buffered_allreduce_fallback": "c36145108c4f0383",
    },
    "deepspeed.runtime.fp16.unfused_optimizer": {
        "FP16_UnfusedOptimizer.step": "626bd9aa8af843e9",
    },
    "deepspeed.runtime.utils": {
        "mask_nan_or_inf_with_val_inplace": "9728853d4df6cd69",
        "CheckOverflow.check": "357a6df530f97581",
    },
    "deepspeed.runtime.zero.stage_1_and_2": {
        "DeepSpeedZeroOptimizer.has_overflow": "cadc27a13cb7e977",
        "DeepSpeedZeroOptimizer.unscale_and_clip_grads": "6bf2ce6f97eafcc2",
        "DeepSpeedZeroOptimizer._update_scale": "456ef78f7cbaa909",
        "DeepSpeedZeroOptimizer._finalize_cpu_offload_gradient_accumulation": "6228bc321fee7607",
        "DeepSpeedZeroOptimizer.step": "9520884fd916d178",
    },
    "deepspeed.runtime.zero.stage3": {
        "DeepSpeedZeroOptimizer_Stage3._update_scale": "456ef78f7cbaa909",
        "DeepSpeedZeroOptimizer_Stage3._finalize_offload_gradient_accumulation": "98b4ee1e07e3999a",
        "DeepSpeedZeroOptimizer_Stage3._reassign_or_swap_out_partitioned_parameters": "af7b449bee8786ec",
        "DeepSpeedZeroOptimizer_Stage3.step": "c751b3209f83d3b9",
    },
    "deepspeed.runtime.compiler": {
        "compile": "41ba17e70620eebc",
    },
    "deepspeed.utils.groups": {
        "_release_process_group_references": "101ee0b8e7751c9a",
    },
}
"""Functions that are replaced, called though private, or relied on for what they do inside: the first 16 digits of the
SHA-256 of their source text."""

WRAPPERS = {
    "FP16_UnfusedOptimizer": "fp16_groups fp32_groups overflow_checker",
    "BF16_Optimizer": (
        "accumulate_hp_grads_and_remove_lp bf16_groups fp32_groups_actual_gradients_flat fp32_groups_flat_partition "
        "fp32_groups_gradients fp32_groups_has_gradients get_grads_for_norm update_lp_params"
    ),
    "DeepSpeedZeroOptimizer": (
        "_finalize_cpu_offload_gradient_accumulation _update_scale averaged_gradients clip_grad cpu_offload "
        "get_param_id has_overflow loss_scale loss_scaler round_robin_bit16_groups round_robin_bit16_offsets "
        "single_partition_of_fp32_groups unscale_and_clip_grads update_lp_params"
    ),
    "DeepSpeedZeroOptimizer_Stage3": (
        "_finalize_offload_gradient_accumulation _reassign_or_swap_out_partitioned_parameters _update_scale "
        "fp16_groups fp32_partitioned_groups_flat get_param_id grad_partitions_flat_buffer loss_scale loss_scaler "
        "offload_optimizer persistent_parameters"
    ),
}
"""DeepSpeed's classes around an optimizer, and the attributes of each that are read or replaced, here, in engine.py and
in partition_map.py."""

OFFLOADED = {
    "DeepSpeedZeroOptimizer": "_offload_accumulated_param_ids norm_for_param_grads",
    "DeepSpeedZeroOptimizer_Stage3": "_offload_boundary_param_ids norm_for_param_grads",
}
"""Those that are there, and are read, with `zero.offload=cpu` alone."""

BUCKET_ELEMENTS = 50_000_000
"""Gradient elements per communication bucket: 200 MB in fp32."""


def check_sources(installed: str) -> None:
    """Compare DeepSpeed's version and the text of each function in SOURCES. Raises UserError where one differs: a fix
    that silently does nothing, or the wrong thing, moves weights."""
    advice = f"pip install deepspeed=={VERSION}"
    if installed != VERSION:
        raise UserError(
            f"version {installed} is installed", where="deepspeed", expected=VERSION, remedy=advice
        )
    for module, functions in SOURCES.items():
        for name, expected in functions.items():
            try:
                text = _source_text(reduce(getattr, name.split("."), import_module(module)))
            except (AttributeError, ImportError, OSError, TypeError, KeyError):
                text = ""
            if hashlib.sha256(text.encode()).hexdigest()[:16] != expected:
                raise UserError(
                    f"{module}.{name} is not that of version {VERSION}",
                    where="deepspeed",
                    expected="the package as it was published",
                    remedy=advice,
                )


def _source_text(function: Any) -> str:
    """Return a function's text; of one that DeepSpeed times (`instrument_w_nvtx`), or that is replaced, its own."""
    function = inspect.unwrap(function)
    if function.__code__.co_name == "wrapped_fn":
        function = inspect.getclosurevars(function).nonlocals["func"]
    return inspect.getsource(function)


def check_wrapper(wrapper: Any, optimizer: Any) -> None:
    """Raise RuntimeError unless `wrapper`, DeepSpeed's object around `optimizer`, is of a class in WRAPPERS with all
    that is read of it, or the optimizer itself (stage 0 in fp32)."""
    if wrapper is optimizer:
        return
    name = type(wrapper).__name__
    if name not in WRAPPERS:
        raise RuntimeError(
            f"DeepSpeed {VERSION} wraps the optimizer in {name} (expected one of {', '.join(WRAPPERS)})"
        )
    read = WRAPPERS[name].split() + (OFFLOADED[name].split() if is_offloaded(wrapper) else [])
    if lacking := [attribute for attribute in read if not hasattr(wrapper, attribute)]:
        raise RuntimeError(f"DeepSpeed's {name} lacks {', '.join(lacking)}")


def refuse_unsupported(deepspeed: Any, stage: int, precision: str, world: World) -> None:
    """Raise UserError for a precision that the device, or DeepSpeed at this ZeRO stage, does not support."""
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
    if stage == 0 and precision == "fp16":
        raise UserError(
            "zero.stage=0 with train.precision=fp16: DeepSpeed does not scale the loss there",
            where="settings",
            remedy="zero.stage=1, or bf16",
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

    check_sources(deepspeed.__version__)
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


# Give DeepSpeed's optimizer exactly the gradients of this step's backward passes.


def complete(wrapper: Any) -> None:
    """Make the step see the gradient of every parameter that any of its micro-batches used."""
    if hasattr(wrapper, "fp32_groups_has_gradients"):
        flags = wrapper.fp32_groups_has_gradients
        flags[:] = [[True] * len(group) for group in flags]
    if not is_offloaded(wrapper):
        return
    # DeepSpeed copies to the host what the last micro-batch used, and notes its norm. What is not noted is copied by
    # the function that it has for steps without a known last micro-batch.
    noted = wrapper.norm_for_param_grads
    if hasattr(wrapper, "grad_partitions_flat_buffer"):
        parameters = [p for group in wrapper.fp16_groups for p in group]
        wrapper._offload_boundary_param_ids -= {
            p.ds_id for p in parameters if wrapper.get_param_id(p) in noted
        }
        wrapper._finalize_offload_gradient_accumulation()
    else:
        wrapper._offload_accumulated_param_ids -= noted.keys()
        wrapper._finalize_cpu_offload_gradient_accumulation()


def forget(wrapper: Any) -> None:
    """Clear all gradients, so that the next step starts from zero."""
    if hasattr(wrapper, "grad_partitions_flat_buffer"):
        wrapper.grad_partitions_flat_buffer.zero_()
    if not is_offloaded(wrapper):
        return
    for flat in _flats(wrapper):
        if flat.grad is not None:
            flat.grad.zero_()
    for sums in getattr(wrapper, "accumulated_grads_in_cpu", {}).values():
        sums.zero_()
    if hasattr(wrapper, "accumulated_grads_in_cpu"):
        wrapper.averaged_gradients = dict.fromkeys(wrapper.averaged_gradients)


def add_in_one_pass(wrapper: Any) -> None:
    """At stage 1 in bf16, add each gradient to its fp32 sum as soon as it is there, as it is: DeepSpeed writes it out
    in fp32 first, which moves 18 bytes a parameter instead of 10, and takes the host longer. Sums keep their bits."""
    if not hasattr(wrapper, "accumulate_hp_grads_and_remove_lp"):
        return
    pairs = [
        zip(*group, strict=True)
        for group in zip(wrapper.fp32_groups_gradients, wrapper.bf16_groups, strict=True)
    ]
    sums = [[total.view(parameter.shape) for total, parameter in group] for group in pairs]

    def add(parameter: Any, group: int, number: int) -> None:
        sums[group][number].add_(parameter.grad)
        parameter.grad = None

    wrapper.accumulate_hp_grads_and_remove_lp = add  # what its hooks call


def keep_sums_of_one_rank(deepspeed_engine: Any, ranks: int) -> None:
    """On one rank, at stage 1 in bf16, leave the fp32 sums where they are: DeepSpeed copies them to buckets, reduces
    these over the one rank and copies them back, 16 bytes a parameter and step."""
    if ranks == 1 and hasattr(deepspeed_engine.optimizer, "accumulate_hp_grads_and_remove_lp"):
        deepspeed_engine.buffered_allreduce_fallback = lambda *_, **__: None


def norm_on_flat_buffer(wrapper: Any, device: torch.device) -> None:
    """At stage 1 in bf16 on a GPU, take the norm of the flat sums and clip them, in one launch for each group, where
    DeepSpeed launches a kernel for each tensor. On a CPU leave that as it is: it rounds norms of long tensors more."""
    if device.type == "cuda" and hasattr(wrapper, "accumulate_hp_grads_and_remove_lp"):
        flats = list(wrapper.fp32_groups_actual_gradients_flat)  # without padding
        wrapper.get_grads_for_norm = lambda for_clipping=False: flats if for_clipping else (flats, {})


def skip_overflow_scan(wrapper: Any) -> None:
    """Let the step look a single time whether the gradient is finite, which on a GPU has the host wait for the device.

    At stage 0 in bf16, stage 1 in fp16 and stage 2 DeepSpeed looks at every tensor of the gradient, then at the norm;
    there and at stage 1 in fp32 again as it clips each group; and everywhere it copies a constant from the host, in
    place of a norm that is not finite. Where a tensor is not finite the norm is not either: steps are refused and
    scaled as before, to the last bit."""
    for module in (sys.modules.get(type(wrapper).__module__), sys.modules.get("deepspeed.runtime.utils")):
        replaced = vars(module).get("mask_nan_or_inf_with_val_inplace") if module else None
        if replaced not in (None, mark_not_finite):
            vars(mark_not_finite)["__wrapped__"] = replaced  # for check_sources, of a later engine
            vars(module)["mask_nan_or_inf_with_val_inplace"] = mark_not_finite
    if hasattr(wrapper, "overflow_checker"):
        wrapper.overflow_checker.check = lambda param_groups=None: False
    if not hasattr(wrapper, "single_partition_of_fp32_groups") or is_offloaded(wrapper):
        return

    def unscale_and_clip(gradients: list[Tensor], norm: Tensor) -> None:
        scale = wrapper.loss_scale
        if wrapper.clip_grad > 0.0:
            scale = torch.clamp((norm / scale + 1e-6) / wrapper.clip_grad, min=1.0) * scale
        elif scale == 1.0:
            return
        for gradient in gradients:
            gradient.mul_(1.0 / scale)

    wrapper.has_overflow = lambda partition_gradients=True: False  # the norm says it, on all ranks
    wrapper.unscale_and_clip_grads = unscale_and_clip


def mark_not_finite(norm: Tensor, device: Any = None) -> None:
    """Replace a norm that is not finite by -1, as DeepSpeed marks it, in place and without a copy from the host."""
    norm.masked_fill_(~torch.isfinite(norm), -1.0)


def is_offloaded(wrapper: Any) -> bool:
    """Return whether masters, moments and the step are on the CPU."""
    return bool(getattr(wrapper, "cpu_offload", False) or getattr(wrapper, "offload_optimizer", False))


def _flats(wrapper: Any) -> list[Any]:
    stage_3 = hasattr(wrapper, "fp32_partitioned_groups_flat")
    return list(wrapper.fp32_partitioned_groups_flat if stage_3 else wrapper.single_partition_of_fp32_groups)
