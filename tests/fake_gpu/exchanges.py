"""What a rank of test_exchanges.py does with its pretended GPU: print what collectives make of tensors there."""

import sys

import torch
import torch.distributed as dist

from pretrain.distributed.world import World


def moved(*values: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype).to(torch.cuda.current_device())


def collectives(world: World) -> None:
    """Each rank gives values of its own."""
    rank, size = world.rank, world.size
    print("device", torch.cuda.current_device(), world.device, torch.cuda.device_count())
    for operation in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN):
        for dtype in (torch.float32, torch.int64, torch.uint8):
            values = moved(rank, 10 + rank, dtype=dtype)
            dist.all_reduce(values, operation)
            print("reduced", values.tolist())
    root = moved(rank + 5)
    dist.broadcast(root, src=1)
    print("from 1", root.tolist())
    every = moved(*[0] * (2 * size))
    dist.all_gather_into_tensor(every, moved(rank, rank + 0.5))
    print("gathered", every.tolist())
    own = moved(0)
    dist.reduce_scatter_tensor(own, moved(*[100 * rank + other for other in range(size)]))
    print("scattered", own.tolist())
    sent = [other + 1 for other in range(size)]
    due = [rank + 1] * size
    given = moved(*[100 * rank + other for other in range(size) for _ in range(other + 1)])
    received = moved(*[0] * sum(due))
    dist.all_to_all_single(received, given, due, sent)
    print("swapped", received.tolist())
    long = torch.arange(3_000_000, dtype=torch.float32).to(world.device)  # more than goes at once
    dist.all_reduce(long)
    print("long", bool((long.cpu() == size * torch.arange(3_000_000)).all()))
    pair = dist.new_group([0, 1])
    if rank < 2:
        values = moved(rank + 1)
        dist.all_reduce(values, group=pair)
        print("two of them", values.tolist())


def unequal(world: World) -> None:
    """Rank 1 gives more than the others."""
    try:
        dist.all_reduce(moved(*[1] * (1 + world.rank)))
    except dist.DistBackendError:
        print("refused")


if __name__ == "__main__":
    here = World.from_environment().start()
    {"collectives": collectives, "unequal": unequal}[sys.argv[1]](here)
    here.stop()
