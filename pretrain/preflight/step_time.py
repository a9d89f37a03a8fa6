"""Predict the seconds of one step from sizes and links. A model of few terms, each stated; nothing is fitted to a run.

    step = max(arithmetic, launches) x (1 + straggling) + optimizer + communication

arithmetic      operations of the model / (peak x utilisation); utilisation is an assumption, or measured
launches        the floor of a pass: the host starts each operation, LAUNCH_SECONDS apart; small models wait for that
straggling      ranks wait for the slowest: the expected largest of W normal draws, in deviations of DEVIATION
optimizer       LAMB's two passes: BYTES_PER_PARAMETER of memory traffic for each parameter that a rank updates; no less
                than the launches that DeepSpeed and LAMB need for it
communication   reduce-scatter and all-gather in rings: inside the node over all of the data, between nodes over each
                GPU's part of it, one after the other, at LINK_EFFICIENCY of the stated bandwidth; not overlapped. Each
                collective has NCCL's latency, however little it moves

The floors are lower bounds: Python's own time in the engine and waits for data come on top.
"""

from math import ceil, floor, log2
from statistics import NormalDist
from typing import NamedTuple

from pretrain.distributed.deepspeed_config import BUCKET_ELEMENTS
from pretrain.preflight.gpus import LINK_EFFICIENCY, NVLINK, PCIE, Gpu

DEVIATION = 0.01
"""Standard deviation of a rank's step time, as a share of the step time."""
BYTES_PER_PARAMETER = 42
"""LAMB in mixed precision: reads gradient, weight and two moments, writes the moments and the update; reads weight
and update, writes weight and its half-precision copy."""
LAUNCH_SECONDS = 5e-6
"""Host time per operation: Python, PyTorch's dispatcher and autograd, cudaLaunchKernel. PyTorch profiles show 5 to 25
microseconds; this is the lower end, since it is a floor."""
COMPILED_PER_PRODUCT = 2
"""Launches in a compiled model per matrix product or attention: itself, and one fused kernel for everything up to the
next."""
OPERATIONS_PER_GRADIENT = 2
"""Per tensor and micro-batch: DeepSpeed adds its gradient to the fp32 sum and copies it to the communication bucket."""
OPERATIONS_PER_UPDATE = 1
"""Per tensor and step: the norm of its gradient, for clipping."""
LAMB_LAUNCHES = 3
"""Per flat tensor and step (optim/lamb_triton.py): the update and its norms, their sum over ranks, the weights."""
SMALL_ALL_REDUCES = 3
"""Per step: whether a gradient overflowed, the gradient's norm, LAMB's norms."""
RING_BASE, RING_HOP = 8.4e-6, {NVLINK: 3.4e-6, PCIE: 5.7e-6}
RING_NETWORK_HOP = 14e-6
TREE_BASE, TREE_HOP = 6.8e-6, {NVLINK: 0.6e-6, PCIE: 1.0e-6}
TREE_NETWORK_HOP = 5e-6
"""Latency in seconds from NCCL's own model of its collectives (NVIDIA/nccl, src/graph/tuning.cc, `baseLat` and
`hwLat`): rings with the Simple protocol for large messages, trees with LL for small ones."""


class Cluster(NamedTuple):
    """Nodes with equal GPUs."""

    nodes: int
    gpus_per_node: int
    gpu: Gpu

    @property
    def ranks(self) -> int:
        return self.nodes * self.gpus_per_node


class StepWork(NamedTuple):
    """The work of one rank in an optimizer step."""

    arithmetic: float
    """Seconds."""
    updated: float
    """Number of parameters that it updates."""
    moved: float
    """Bytes through collectives (`communication_bytes`)."""
    pass_operations: int = 0
    """Launches by the host in forward and backward of all micro-batches."""
    update_operations: int = 0
    """Launches by the host for the optimizer."""
    collectives: int = 0
    """Reduce-scatters and all-gathers (`collectives_per_step`)."""


class StepTime(NamedTuple):
    """Seconds of one optimizer step."""

    arithmetic: float
    launching: float
    """Seconds in which the GPU waits for the host, beyond its arithmetic."""
    straggling: float
    optimizer: float
    communication: float

    @property
    def total(self) -> float:
        return sum(self)


def collective_seconds(size: float, cluster: Cluster) -> float:
    """Return the seconds of a reduce-scatter or an all-gather of `size` bytes over all ranks; an all-reduce is both.
    Rings: each GPU sends (n - 1) / n of the data to its neighbour inside the node, and its n-th part to other nodes."""
    inside, nodes = cluster.gpus_per_node, cluster.nodes
    within = (inside - 1) / inside * size / (cluster.gpu.inside * LINK_EFFICIENCY)
    across = (nodes - 1) / nodes * size / inside / (cluster.gpu.between * LINK_EFFICIENCY)
    return within + across


def ring_latency(cluster: Cluster) -> float:
    """Return the latency in seconds of an empty reduce-scatter or all-gather: one ring over all ranks, hop after
    hop."""
    across = cluster.nodes - 1
    within = cluster.ranks - 1 - across
    return RING_BASE + within * RING_HOP[cluster.gpu.link] + across * RING_NETWORK_HOP


def small_all_reduce(cluster: Cluster) -> float:
    """Return the seconds of an all-reduce of a few numbers: up and down a tree of nodes, with a chain of GPUs in
    each."""
    within = (cluster.gpus_per_node - 1) * TREE_HOP[cluster.gpu.link]
    return TREE_BASE + 2 * (within + floor(log2(cluster.nodes)) * TREE_NETWORK_HOP)


def communication_bytes(
    stage: int,
    parameters: int,
    micro_batches: int,
    gradient_bytes: int,
    weight_bytes: int,
    scattered: bool = True,
) -> float:
    """Return the bytes per step through a reduce-scatter or an all-gather at a ZeRO stage: gradients once (stage 2 and
    3: per micro-batch), updated weights once (stage 3: gathered for each forward and backward pass). `scattered=False`:
    stage 1 all-reduces its gradients, twice the bytes, as DeepSpeed's BF16_Optimizer does."""
    gradients, weights = parameters * gradient_bytes, parameters * weight_bytes
    if stage == 0:
        return 2.0 * gradients  # an all-reduce
    if stage == 1:
        return float((1 if scattered else 2) * gradients + weights)
    if stage == 2:
        return float(micro_batches * gradients + weights)
    return float(micro_batches * (gradients + 2 * weights))


def collectives_per_step(stage: int, parameters: int, micro_batches: int, layers: int) -> int:
    """Return the number of reduce-scatters and all-gathers for those bytes: one per gradient bucket, and as many for
    the weights; stage 3 gathers weights layer by layer, twice per micro-batch."""
    buckets = ceil(parameters / BUCKET_ELEMENTS)
    if stage <= 1:
        return 2 * buckets
    if stage == 2:
        return (micro_batches + 1) * buckets
    return micro_batches * (buckets + 2 * max(buckets, layers))


def update_operations(stage: int, tensors: int) -> int:
    """Return the operations that the host launches to update this many tensors. LAMB's flat tensors are the two groups
    of parameters, with weight decay and without; at stage 0 each tensor is one."""
    return OPERATIONS_PER_UPDATE * tensors + LAMB_LAUNCHES * (2 if stage else tensors)


def straggling(ranks: int) -> float:
    """Return how far the slowest of `ranks` ranks exceeds their mean, as a share (Blom 1958's approximation of the
    expected maximum of normal draws)."""
    if ranks == 1:
        return 0.0
    return DEVIATION * NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))


def optimizer_seconds(parameters_updated: float, gpu: Gpu) -> float:
    """Return the seconds of LAMB's update of this many parameters on one GPU, at the datasheet's memory bandwidth."""
    return parameters_updated * BYTES_PER_PARAMETER / gpu.memory_bandwidth


def step_time(work: StepWork, cluster: Cluster) -> StepTime:
    """Predict the time of a step in which each rank of `cluster` does `work`."""
    launches = work.pass_operations * LAUNCH_SECONDS
    communication = 0.0
    if cluster.ranks > 1:
        communication = collective_seconds(work.moved, cluster) + work.collectives * ring_latency(cluster)
        communication += SMALL_ALL_REDUCES * small_all_reduce(cluster) if work.collectives else 0.0
    return StepTime(
        work.arithmetic,
        max(0.0, launches - work.arithmetic),
        max(work.arithmetic, launches) * straggling(cluster.ranks),
        max(optimizer_seconds(work.updated, cluster.gpu), work.update_operations * LAUNCH_SECONDS),
        communication,
    )
