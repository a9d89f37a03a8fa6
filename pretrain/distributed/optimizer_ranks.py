"""Give an optimizer the layouts of its flat tensors and the collectives between ranks that it needs."""

import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from pretrain.distributed.partition_map import PartitionMap
from pretrain.distributed.world import World
from pretrain.optim.flat_layout import Collectives, Layout, Segment
from pretrain.optim.flat_optimizer import FlatOptimizer
from pretrain.optim.muon import Muon


def connect(optimizer: Optimizer, partition: PartitionMap, world: World) -> None:
    """Tell an optimizer of ours how its tensors are cut; a no-op for torch's. Collective."""
    collectives = collectives_of(world)
    if isinstance(optimizer, FlatOptimizer):
        optimizer.use_layouts(partition.layout_of, collectives.add if world.size > 1 else None)
    if isinstance(optimizer, Muon):
        layouts = layouts_of_ranks(partition, world)
        optimizer.use_matrices(partition.shapes, lambda tensor: layouts[id(tensor)], collectives)


def collectives_of(world: World) -> Collectives:
    """Return the collectives of the ranks; they run over gloo if the optimizer is offloaded to the CPU."""

    def group(values: Tensor) -> object:
        return world.messages if values.device.type != world.device.type else None

    def add(values: Tensor) -> None:
        dist.all_reduce(values, group=group(values))

    def swap(values: Tensor, sent: list[int], due: list[int]) -> Tensor:
        received = values.new_empty(sum(due))
        dist.all_to_all_single(received, values, due, sent, group=group(values))
        return received

    return Collectives(world.rank, world.size, add, swap)


def layouts_of_ranks(partition: PartitionMap, world: World) -> dict[int, list[Layout]]:
    """Return the layouts on all ranks of each flat tensor, by the tensor's id here. Collective."""
    segments = world.gather([list(map(list, flat.layout.segments)) for flat in partition.flats])
    return {
        id(flat.tensor): [
            Layout(
                flat.layout.names,
                tuple(Segment(*one) for one in segments[rank][number]),
                flat.layout.numel,
                flat.layout.split,
            )
            for rank in range(world.size)
        ]
        for number, flat in enumerate(partition.flats)
    }
