"""Map DeepSpeed's flat tensors to named parameters, read and write them by name, and send weights between ranks.

The map is used for sums over parameters (LAMB's norms) and for saving and loading by name. `build_partition_map`
makes it after DeepSpeed's `initialize`. Where the pieces are, by DeepSpeed's (0.19) wrapper around our optimizer;
found by experiment, tested in tests/multirank:

| stage, precision  | DeepSpeed's class             | flat tensors                       | parameters in order      |
|-------------------|-------------------------------|------------------------------------|--------------------------|
| 0 fp32            | none                          | the module's parameters            | themselves               |
| 0 bf16            | FP16_UnfusedOptimizer         | fp32_groups[i][j]                  | fp16_groups[i][j]        |
| 1 bf16            | BF16_Optimizer                | fp32_groups_flat_partition[i]      | bf16_groups[i]           |
| 1 fp32, fp16; 2   | DeepSpeedZeroOptimizer        | single_partition_of_fp32_groups[i] | round_robin_bit16_groups |
| 3                 | DeepSpeedZeroOptimizer_Stage3 | fp32_partitioned_groups_flat[k]    | fp16_groups[k]           |

At stages 1 and 2 a rank holds the elements of a whole group from rank * flat.numel() on, padded with zeros. At stage
3 it holds its share of each parameter of a sub-group, and the padding after a parameter is uninitialised memory until
it is set to zero here. Wrappers are recognised by their attributes: nothing here imports DeepSpeed.

Alignment, as read in DeepSpeed's source. At stages 1 and 2 it pads a group of G elements on W ranks to W slices of 2
ceil(G / 2W) (`nccl_start_alignment_factor`, fixed in its constructors). Masters and moments are allocations of their
own on every rank, and gradients are gathered into new tensors for the step, except one: at stage 1 in bf16 it is a
view of the whole group's buffer, from byte 8 r ceil(G / 2W) on. Where that is a multiple of 8 and not of 16, Triton
accesses it in words of 4 bytes. By that rule, for BERT-base (no GPU has run it):

| group                | ranks       | elements of a slice             | its gradient begins at, modulo 16 bytes |
|----------------------|-------------|---------------------------------|-----------------------------------------|
| decay, 109,956,096   | 2, 4, 8, 64 | 54,978,048 ... 1,718,064        | 0 on all ranks                          |
| no decay, 154,946    | 2, 4, 8, 64 | 77,474; 38,738; 19,370; 2,422   | 0 on even ranks, 8 on odd ones          |

Longer slices would mend it, and would fit the checkpoints, which go by name. But they move the borders between ranks.
The global gradient norm, and the norms of LAMB, are sums over slices: added in another order they differ in the last
bit, and then so do the weights. The gain is in a seventh of a percent of the elements: the layout stays DeepSpeed's.
"""

import math
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from pretrain.distributed.world import World
from pretrain.optim.flat_layout import Fragment, Layout, Segment, whole
from pretrain.optim.registry import MOMENTS

KINDS = ("master", *MOMENTS)

Reader = Callable[[str, str, int, int], Tensor | None]
"""read(name, kind, start, length): elements start..start+length-1 of the flattened tensor; None: keep what is there."""


@dataclass(frozen=True)
class Flat:
    """One fp32 tensor that the optimizer updates on this rank, and its contents."""

    tensor: Tensor
    layout: Layout
    moments: tuple[str, ...] = MOMENTS
    """The moments that the optimizer keeps of it."""


@dataclass(frozen=True)
class Fixed:
    """A piece of a frozen parameter or buffer on this rank, 1-D, in the module's own precision."""

    name: str
    start: int
    values: Tensor
    split: bool


@dataclass(frozen=True)
class PartitionMap:
    """Which elements of which named tensors this rank holds, and where."""

    flats: tuple[Flat, ...]
    fixed: tuple[Fixed, ...]
    shapes: dict[str, list[int]]
    """Full shape of every parameter (a tied one once) and persistent buffer, by name."""
    rank: int
    size: int
    optimizer: Optimizer
    refresh: Callable[[], None]
    """Updates the module's own copies from the masters. Collective."""

    layouts: dict[int, Layout]
    """Layout of each flat tensor, by its id."""

    def layout_of(self, tensor: Tensor) -> Layout:
        """Return the layout of a tensor that the optimizer updates."""
        return self.layouts[id(tensor)]

    def fragments(self, kinds: Iterable[str] = KINDS) -> Iterator[Fragment]:
        """Return this rank's pieces of masters, moments, frozen parameters and buffers, as views; those among `kinds`,
        where frozen parameters and buffers count as masters.

        Over all ranks, every element of every tensor occurs exactly once. Replicated tensors (stage 0) are divided
        evenly by elements; frozen parameters and buffers are rank 0's unless split.
        """
        for kind in kinds:
            for name, start, values in self._trainable(kind):
                yield Fragment(kind, name, start, values)
        for piece in self.fixed if "master" in kinds else ():
            if (piece.split or self.rank == 0) and piece.values.numel():
                yield Fragment("master", piece.name, piece.start, piece.values)

    def _trainable(self, kind: str) -> Iterator[tuple[str, int, Tensor]]:
        replicated = sum(flat.layout.numel for flat in self.flats if not flat.layout.split)
        low, high = (replicated * (self.rank + i) // self.size for i in (0, 1))
        seen = 0
        for flat in self.flats:
            values = self._values(flat, kind) if kind in ("master", *flat.moments) else None
            for segment in flat.layout.segments:
                first, last = segment.start, segment.start + segment.length
                if not flat.layout.split:
                    first, last = max(first, low - seen), min(last, high - seen)
                if values is not None and first < last:
                    offset = segment.offset + first - segment.start
                    yield flat.layout.names[segment.parameter], offset, values[first:last]
            seen += 0 if flat.layout.split else flat.layout.numel

    @torch.no_grad()
    def load(self, read: Reader, updates: int, kinds: Iterable[str] = KINDS) -> None:
        """Fill this rank's pieces of `kinds` from `read`, then update the module. Collective.

        `updates`: number of updates that the moments have seen, for the bias correction. Moments that are not
        among `kinds` become zero. Padding becomes zero.
        """
        for flat in self.flats:
            for kind in ("master", *flat.moments):
                self._load_flat(flat, kind, read if kind in kinds else None)
            self._set_updates(flat, updates)
        for piece in self.fixed if "master" in kinds else ():
            if piece.values.numel():
                _fill(piece.values, read(piece.name, "master", piece.start, piece.values.numel()))
        self.refresh()

    def _load_flat(self, flat: Flat, kind: str, read: Reader | None) -> None:
        values = self._values(flat, kind)
        for start, length in flat.layout.padding():
            values[start : start + length].zero_()
        for segment in flat.layout.segments:
            piece = values[segment.start : segment.start + segment.length]
            if read is not None:
                name = flat.layout.names[segment.parameter]
                _fill(piece, read(name, kind, segment.offset, segment.length))
            elif kind in MOMENTS:
                piece.zero_()

    @property
    def updates(self) -> int:
        """Return the optimizer's number of updates: the counter of its bias correction."""
        counts = {int(self._state(flat)["step"]) for flat in self.flats}
        assert len(counts) == 1, f"tensors with different numbers of updates: {sorted(counts)}"
        return counts.pop()

    def restart_bias_correction(self) -> None:
        """Reset the optimizer's update count; keep weights and moments."""
        for flat in self.flats:
            self._set_updates(flat, 0)

    def _set_updates(self, flat: Flat, updates: int) -> None:
        state = self._state(flat)
        counter = state["step"]  # torch's fused AdamW reads a tensor, on the device
        state["step"] = counter.new_tensor(float(updates)) if isinstance(counter, Tensor) else updates

    def _values(self, flat: Flat, kind: str) -> Tensor:
        tensor = flat.tensor if kind == "master" else self._state(flat)[kind]
        return tensor.detach().view(-1)

    def _state(self, flat: Flat) -> dict[str, Any]:
        """Return the optimizer's state of a tensor, initialised as before its first update if missing."""
        state = self.optimizer.state[flat.tensor]
        if not state:
            is_torch = isinstance(self.optimizer, torch.optim.AdamW)
            state["step"] = torch.zeros((), device=flat.tensor.device) if is_torch else 0
            state.update({kind: torch.zeros_like(flat.tensor) for kind in flat.moments})
        return state


def _fill(values: Tensor, found: Tensor | None) -> None:
    if found is not None:
        values.copy_(found)


# How the map is built from DeepSpeed's wrapper, by the rows of the module's first table.


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
    """Return the moments of the group that holds a tensor. At stage 3 the groups are empty between steps; those of an
    optimizer that runs there are alike."""
    holders = (g for g in optimizer.param_groups if any(tensor is p for p in g["params"]))
    moments: tuple[str, ...] = next(holders, optimizer.param_groups[0])["moments"]
    return moments


Names = dict[int, str]  # id of a parameter -> its name
Found = tuple[list[Flat], Callable[[], None]]  # flat tensors, and what makes the module follow them


def _flats(wrapper: Any, optimizer: Optimizer, names: Names, rank: int) -> Found:
    """Select the row of the module's first table by the attributes of DeepSpeed's classes."""
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


# Weights between ranks: whole and by name to the first one, and its own to all.


@torch.no_grad()
def whole_weights(
    partition: PartitionMap, world: World, names: Container[str] | None = None
) -> dict[str, Tensor]:
    """Return copies of masters, frozen parameters and buffers by name, all or those of `names`, on the CPU and with
    vocabulary padding, on the first rank; {} on the others. Works from the pieces that each rank holds, so at every
    ZeRO stage, and changes nothing of the engine. All ranks call this."""
    own = [piece for piece in partition.fragments(("master",)) if names is None or piece.name in names]
    told = [(piece.name, piece.start, str(piece.values.dtype).removeprefix("torch.")) for piece in own]
    lengths = [piece.values.numel() for piece in own]
    every = world.gather([told, lengths])  # JSON: who holds what
    if world.rank:
        for piece in own:
            dist.send(_bytes(piece.values.cpu()), dst=0, group=world.messages)
        return {}
    found: dict[str, Tensor] = {}
    for rank, (pieces, sizes) in enumerate(every):
        for number, ((name, start, kind), length) in enumerate(zip(pieces, sizes, strict=True)):
            shape, dtype = partition.shapes[name], getattr(torch, kind)
            whole = found.setdefault(name, torch.empty(math.prod(shape), dtype=dtype))
            place = whole[start : start + length]
            if rank == 0:
                place.copy_(own[number].values)
            else:
                dist.recv(_bytes(place), src=rank, group=world.messages)
    return {name: tensor.view(partition.shapes[name]) for name, tensor in found.items()}


@torch.no_grad()
def share_rank_0(model: nn.Module, world: World) -> None:
    """Give every rank the parameters and buffers of the first one. All ranks call this."""
    if world.size > 1:
        for tensor in (*model.parameters(), *model.buffers()):
            dist.broadcast(tensor, src=0)


def _bytes(values: Tensor) -> Tensor:
    """Return a view that gloo moves whatever the dtype is."""
    return values.contiguous().view(torch.uint8)
