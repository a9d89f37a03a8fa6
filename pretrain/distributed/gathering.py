"""Send weights between ranks: whole and by name to the first one, and its own to all."""

import math
from collections.abc import Container

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pretrain.distributed.partition_map import PartitionMap
from pretrain.distributed.world import World


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
