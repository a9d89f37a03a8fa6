"""Map the flat tensors of DeepSpeed's optimizer, after `initialize`, to named parameters.

Where the pieces are, by DeepSpeed's (0.19) wrapper around our optimizer; found by experiment, tested in
tests/multirank:

| stage, precision  | DeepSpeed's class             | flat tensors                       | parameters in order      |
|-------------------|-------------------------------|------------------------------------|--------------------------|
| 0 fp32            | none                          | the module's parameters            | themselves               |
| 0 bf16            | FP16_UnfusedOptimizer         | fp32_groups[i][j]                  | fp16_groups[i][j]        |
| 1 bf16            | BF16_Optimizer                | fp32_groups_flat_partition[i]      | bf16_groups[i]           |
| 1 fp32, fp16; 2   | DeepSpeedZeroOptimizer        | single_partition_of_fp32_groups[i] | round_robin_bit16_groups |
| 3                 | DeepSpeedZeroOptimizer_Stage3 | fp32_partitioned_groups_flat[k]    | fp16_groups[k]           |

At stages 1 and 2 a rank holds the elements of a whole group from rank * flat.numel() on, padded with zeros. At
stage 3 it holds its share of each parameter of a sub-group, and the padding after a parameter is uninitialised
memory until it is set to zero here. Wrappers are recognised by their attributes: nothing here imports DeepSpeed.

Alignment, as read in DeepSpeed's source. At stages 1 and 2 it pads a group of G elements on W ranks to W slices of
2 ceil(G / 2W) (`nccl_start_alignment_factor`, fixed in its constructors). Masters and moments are allocations of their
own on every rank, and gradients are gathered into new tensors for the step, except one: at stage 1 in bf16 it is
a view of the whole group's buffer, from byte 8 r ceil(G / 2W) on. Where that is a multiple of 8 and not of 16, Triton
accesses it in words of 4 bytes. By that rule, for BERT-base (no GPU has run it):

| group                | ranks       | elements of a slice             | its gradient begins at, modulo 16 bytes |
|----------------------|-------------|---------------------------------|-----------------------------------------|
| decay, 109,956,096   | 2, 4, 8, 64 | 54,978,048 ... 1,718,064        | 0 on all ranks                          |
| no decay, 154,946    | 2, 4, 8, 64 | 77,474; 38,738; 19,370; 2,422   | 0 on even ranks, 8 on odd ones          |

Longer slices would mend it, and would fit the checkpoints, which go by name. But they move the borders between ranks.
The global gradient norm, and the norms of LAMB, are sums over slices: added in another order they differ in the last
bit, and then so do the weights. The gain is in a seventh of a percent of the elements: the layout stays DeepSpeed's.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pretrain.distributed.partition_map import Fixed, Flat, PartitionMap
from pretrain.optim.flat_layout import MOMENTS, Layout, Segment, whole


def build_partition_map(
    wrapper: Any, optimizer: Optimizer, module: nn.Module, rank: int, size: int
) -> PartitionMap:
    """Build the partition map of a model after `deepspeed.initialize`.

    `wrapper`: the engine's `optimizer`; `optimizer`: our own inside it. Sets stage 3's padding to zero. Raises
    RuntimeError if the pieces do not add up to the parameters: DeepSpeed's layout has changed.
    """
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    flats, refresh = _flats(wrapper, optimizer, names, rank)
    for flat in flats:
        for start, length in flat.layout.padding():
            flat.tensor.detach().view(-1)[start : start + length].zero_()
    shapes = {name: list(_shape(p)) for name, p in module.named_parameters()}
    buffers = _persistent_buffers(module)
    shapes.update({name: list(buffer.shape) for name, buffer in buffers.items()})
    held = {name for flat in flats for name in flat.layout.names}
    fixed = [_fixed(n, p, rank) for n, p in module.named_parameters() if n not in held]
    fixed += [Fixed(name, 0, buffer.detach().view(-1), False) for name, buffer in buffers.items()]
    trainable = {name for name, p in module.named_parameters() if p.requires_grad}
    if held != trainable:
        raise RuntimeError(f"not in DeepSpeed's flat tensors: {sorted(trainable ^ held)}")
    layouts = {id(flat.tensor): flat.layout for flat in flats}
    flats = [replace(flat, moments=_moments(optimizer, flat.tensor)) for flat in flats]
    return PartitionMap(tuple(flats), tuple(fixed), shapes, rank, size, optimizer, refresh, layouts)


def _moments(optimizer: Optimizer, tensor: Tensor) -> tuple[str, ...]:
    """Return the moments of the group that holds a tensor. At stage 3 the groups are empty between steps, and all
    optimizers that run there have Adam's."""
    groups = (g for g in optimizer.param_groups if any(tensor is p for p in g["params"]))
    return next(groups, {}).get("moments", MOMENTS)


Names = dict[int, str]  # id of a parameter -> its name
Found = tuple[list[Flat], Callable[[], None]]  # flat tensors, and what makes the module follow them


def _flats(wrapper: Any, optimizer: Optimizer, names: Names, rank: int) -> Found:
    """Select the row of the table above by the attributes of DeepSpeed's classes."""
    if wrapper is optimizer:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        return [Flat(p, whole(names[id(p)], p.numel())) for p in parameters], lambda: None
    if hasattr(wrapper, "fp32_partitioned_groups_flat"):
        return _stage_3_flats(wrapper, names, rank)
    if hasattr(wrapper, "single_partition_of_fp32_groups"):
        tensors, groups = wrapper.single_partition_of_fp32_groups, wrapper.round_robin_bit16_groups
        starts = wrapper.round_robin_bit16_offsets
    elif hasattr(wrapper, "fp32_groups_flat_partition"):
        tensors, groups = wrapper.fp32_groups_flat_partition, wrapper.bf16_groups
        starts = [list(accumulate([p.numel() for p in group[:-1]], initial=0)) for group in groups]
    else:
        return _unsharded_flats(wrapper, names)
    flats = [
        _group_flat(tensor, [(names[id(p)], p.numel(), at) for p, at in zip(group, first, strict=True)], rank)
        for tensor, group, first in zip(tensors, groups, starts, strict=True)
    ]
    return flats, wrapper.update_lp_params


def _unsharded_flats(wrapper: Any, names: Names) -> Found:
    """Find the flat tensors of stage 0 in low precision: one fp32 master per parameter."""
    pairs = [
        (master, parameter)
        for masters, parameters in zip(wrapper.fp32_groups, wrapper.fp16_groups, strict=True)
        for master, parameter in zip(masters, parameters, strict=True)
    ]

    def refresh() -> None:
        for master, parameter in pairs:
            parameter.data.copy_(master.data)

    return [Flat(master, whole(names[id(p)], master.numel())) for master, p in pairs], refresh


def _group_flat(tensor: Tensor, parameters: list[tuple[str, int, int]], rank: int) -> Flat:
    """Describe this rank's slice of a flattened group. `parameters`: (name, elements, start in the flattened group)."""
    low, high = rank * tensor.numel(), (rank + 1) * tensor.numel()
    segments = []
    for index, (_, numel, at) in enumerate(parameters):
        first, last = max(at, low), min(at + numel, high)
        if first < last:
            segments.append(Segment(index, first - low, last - first, first - at))
    names = tuple(name for name, _, _ in parameters)
    return Flat(tensor, Layout(names, tuple(segments), tensor.numel(), split=True))


def _stage_3_flats(wrapper: Any, names: Names, rank: int) -> Found:
    def refresh() -> None:
        for group in range(len(wrapper.fp16_groups)):
            wrapper._reassign_or_swap_out_partitioned_parameters(group)
        persistent = wrapper.persistent_parameters  # small ones, which every rank keeps whole between steps
        for parameter in persistent:
            parameter.partition()
        if persistent:
            persistent[0].all_gather(persistent)

    groups = zip(wrapper.fp32_partitioned_groups_flat, wrapper.fp16_groups, strict=True)
    flats = [_sub_group_flat(tensor, [(names[id(p)], p) for p in group], rank) for tensor, group in groups]
    return flats, refresh


def _sub_group_flat(tensor: Tensor, parameters: list[tuple[str, Any]], rank: int) -> Flat:
    """Describe this rank's shares of a sub-group, concatenated, each padded to the parameter's longest share."""
    segments, at = [], 0
    for index, (_, parameter) in enumerate(parameters):
        share, length = _share(parameter, rank)
        if length:
            segments.append(Segment(index, at, length, rank * share))
        at += share
    if at != tensor.numel():
        raise RuntimeError(f"a stage 3 sub-group has {tensor.numel()} elements, its parameters {at}")
    names = tuple(name for name, _ in parameters)
    return Flat(tensor, Layout(names, tuple(segments), tensor.numel(), split=True))


def _share(parameter: Any, rank: int) -> tuple[int, int]:
    """Return (elements allocated per share at stage 3, elements of the parameter in this rank's share)."""
    share = parameter.partition_numel()
    return share, max(0, min(share, parameter.ds_numel - rank * share))


def _shape(parameter: Any) -> torch.Size:
    return getattr(parameter, "ds_shape", parameter.shape)  # at stage 3 the tensor itself is empty


def _fixed(name: str, parameter: Any, rank: int) -> Fixed:
    """Return this rank's piece of a frozen parameter: all of it, or at stage 3 this rank's share."""
    if not hasattr(parameter, "ds_tensor"):
        return Fixed(name, 0, parameter.detach().view(-1), split=False)
    share, length = _share(parameter, rank)
    return Fixed(name, rank * share, parameter.ds_tensor.data[:length], split=True)


def _persistent_buffers(module: nn.Module) -> dict[str, Tensor]:
    saved = module.state_dict(keep_vars=True).keys()
    return {name: buffer for name, buffer in module.named_buffers() if name in saved}
