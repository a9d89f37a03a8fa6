"""Predict the seconds of one step from sizes and links, and look up or measure the peak FLOP/s of a device.

The prediction is a model of few terms, each stated:

    step = max(arithmetic, host) x (1 + straggling) + optimizer + communication

arithmetic      operations of the model / (peak x utilisation); utilisation is an assumption, or measured (gpus.py)
host            the least that a step takes: the host launches the kernels of each pass and of the update, and small
                models wait for it
straggling      ranks wait for the slowest: the expected largest of W normal draws, in deviations of DEVIATION
optimizer       LAMB's two passes: BYTES_PER_PARAMETER of memory traffic for each parameter that a rank updates
communication   reduce-scatter and all-gather in rings: inside the node over all of the data, between nodes over each
                GPU's part of it, one after the other, at LINK_EFFICIENCY of the stated bandwidth; not overlapped. Each
                collective has NCCL's latency, however little it moves

Waits for data, and for the device at log steps, come on top.
"""

import time
from math import ceil, floor, log2
from statistics import NormalDist
from typing import NamedTuple

import torch
from torch import nn

from pretrain.distributed.deepspeed_patches import BUCKET_ELEMENTS
from pretrain.preflight.gpus import LINK_EFFICIENCY, NVLINK, PCIE, Gpu, data_sheet

# The peak FLOP/s of a device, looked up or measured.


def peak_flops(device: torch.device, stated_tflops: float) -> float:
    """Return the peak operations per second of one rank's device: stated, known by name, or measured on a CPU with this
    rank's threads (fp32 matrix product, 1024 cubed); 0 if unknown."""
    if stated_tflops > 0:
        return stated_tflops * 1e12
    if device.type == "cuda":
        sheet = data_sheet(torch.cuda.get_device_name(device))
        return sheet.half_tflops * 1e12 if sheet else 0.0
    a, b = torch.rand(1024, 1024), torch.rand(1024, 1024)
    best = float("inf")
    for _ in range(5):
        started = time.perf_counter()
        torch.mm(a, b)
        best = min(best, time.perf_counter() - started)
    return 2 * 1024**3 / best


def peak_source(device: torch.device, stated_tflops: float) -> str:
    """Return the source of `peak_flops`: stated, data sheet, measured or unknown."""
    if stated_tflops > 0:
        return "stated"
    if device.type != "cuda":
        return "measured"
    return "data sheet" if peak_flops(device, 0.0) else "unknown"


# The terms of a step.

DEVIATION = 0.01
"""Standard deviation of a rank's step time, as a share of the step time."""
BYTES_PER_PARAMETER = 42
"""LAMB in mixed precision: reads gradient, weight and two moments, writes the moments and the update; reads weight
and update, writes weight and its half-precision copy."""
HOST_PASS, HOST_LAYER, HOST_UPDATE = 15e-3, 1.58e-3, 4e-3
"""Seconds of the host for forward and backward of a micro-batch, for each layer in it, and for the update of a step,
compiled in bf16 at stage 1 (docs/evidence/plan_calibration.md). The first two are the line through the 53 ms that
BERT-large's 24 layers took on an H200 and the 34 ms of BERT-base's 12; an H100's host took 66 ms for 24, and 4 ms for
the update. They are the same for every GPU, since they are the host's."""
SMALL_ALL_REDUCES = 3
"""Per step: the gradient's norm, of each of two groups, and LAMB's norms."""
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
    host: float = 0.0
    """Seconds in which the host launches the kernels (`host_seconds`)."""
    collectives: int = 0
    """Reduce-scatters and all-gathers (`collectives_per_step`)."""


class StepTime(NamedTuple):
    """Seconds of one optimizer step."""

    arithmetic: float
    launching: float
    """Seconds in which the GPU waits for the host, which launches its kernels, beyond its arithmetic."""
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


def layers_of(model: nn.Module) -> int:
    """Count the layers of all encoders of a model: ELECTRA's has two."""
    stacks = (getattr(part, "layers", None) for part in model.modules())
    return sum(len(stack) for stack in stacks if isinstance(stack, nn.ModuleList))


def host_seconds(layers: int, micro_batches: int) -> float:
    """Return the seconds in which the host launches the kernels of a step."""
    return HOST_UPDATE + micro_batches * (HOST_PASS + HOST_LAYER * layers)


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
    communication = 0.0
    if cluster.ranks > 1:
        communication = collective_seconds(work.moved, cluster) + work.collectives * ring_latency(cluster)
        communication += SMALL_ALL_REDUCES * small_all_reduce(cluster) if work.collectives else 0.0
    return StepTime(
        work.arithmetic,
        max(0.0, work.host - work.arithmetic),
        max(work.arithmetic, work.host) * straggling(cluster.ranks),
        optimizer_seconds(work.updated, cluster.gpu),
        communication,
    )
