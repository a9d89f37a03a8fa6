"""Predict the seconds of one step from sizes and links, and look up or measure the peak FLOP/s of a device.

The prediction is a model of few terms, each stated:

    step = max(arithmetic, launches) x (1 + straggling) + optimizer + communication

arithmetic      operations of the model / (peak x utilisation); utilisation is an assumption, or measured
launches        the host's part of a pass: it starts each operation, LAUNCH_SECONDS apart; small models wait for that.
                Operations are kernels, products and copies, as a pretended GPU counts them (tests/fake_gpu)
straggling      ranks wait for the slowest: the expected largest of W normal draws, in deviations of DEVIATION
optimizer       LAMB's two passes: BYTES_PER_PARAMETER of memory traffic for each parameter that a rank updates; no less
                than the operations that the host starts for it, counted with LAMB
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
LAUNCH_SECONDS = 34e-6
"""Host time per operation: Python, DeepSpeed's hooks, PyTorch's dispatcher and autograd, cudaLaunchKernel. Measured
(docs/evidence/plan_calibration.md) as what the host needs for forward and backward of a micro-batch, over the
operations counted here: BERT-large 53 ms for 1,566 on an H200 and 66 ms on an H100, BERT-base 34 ms for 894 on the
H200, so 34, 42 and 38 microseconds. The least of them for every GPU, since it is the host's; all ran
compiled at stage 1 in bf16."""
COMPILED_PER_PRODUCT = 2
"""Operations in a compiled model per matrix product or attention: itself, and one fused kernel for everything up to the
next."""
EAGER_PER_PASS, COMPILED_PER_PASS = 143, 180
"""Per micro-batch, whatever the number of layers: copies of the batch, deterministic gradients of lookups, which sort
in several kernels, sums of the loss and the meter, and in a compiled model the operators that stay whole. Counted for
two layers of 46 tensors at stage 1 in bf16: 437 = 248 + 46 + 143 and 334 = 2 x 54 + 46 + 180, where memory.py has 248
operations, 54 of them products, and 46 are `PER_GRADIENT`."""
PER_GRADIENT = {"bf16": (2, 1, 3, 2), "fp16": (2, 2, 3, 2), "fp32": (1, 1, 3, 2)}
"""Per tensor and micro-batch, by ZeRO stage. Stage 1 in bf16: one addition to the fp32 sum (`add_in_one_pass`). Stage 0
in bf16: zeros and the addition. Stage 1 in fp16: a conversion and the addition; stage 2 has a copy to the bucket beside
them: 433 = 2 x 54 + 180 + 3.2 x 46 compiled in bf16. Stage 3: 486 = 248 + 143 + 2 x 46 + 3."""
PER_REDUCED = 2
"""Per tensor and step, at stages 0 and 1: a copy to the bucket, and one back; none in bf16 at stage 1, where the sums
are flat. Stages 2 and 3 reduce at each micro-batch, which is in `PER_GRADIENT`."""
PER_OFFLOADED = 10
"""Per tensor and micro-batch with zero.offload=cpu: 843 = 248 + 143 + 9.8 x 46."""
PER_UPDATE, PER_OFFLOADED_UPDATE = 77, 85
"""Per step, whatever the number of tensors: norm, clipping, LAMB's two flat tensors, the weights in low precision.
Counted at stage 1 in bf16, where no operation is a tensor's (`norm_on_flat_buffer`), and offloaded at stage 2 for
AdamW."""
PER_UPDATED = {"bf16": (14, 0, 3, 3), "fp16": (14, 3, 3, 3), "fp32": (8, 3, 3, 3)}
"""Per tensor and step beside them, by ZeRO stage: its norm; at stage 0 LAMB steps each tensor by itself. Counted with
46 tensors: 206 in fp32 and 204 in fp16 at stage 1, 204 at stage 2, 211 at stage 3 and 699 at stage 0 in bf16. Stage 0
in fp32 is read from the code; the rest, not counted, are those of DeepSpeed's same class."""
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
    pass_operations: int = 0
    """Operations that the host starts in forward and backward of all micro-batches."""
    update_operations: int = 0
    """Operations that the host starts for the optimizer."""
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


def gradient_operations(
    stage: int, precision: str, tensors: int, micro_batches: int, offloaded: bool = False
) -> int:
    """Return the operations that the host starts in a step to add up and reduce the gradients of so many tensors."""
    if offloaded:
        return PER_OFFLOADED * tensors * micro_batches
    flat = stage == 1 and precision == "bf16"
    reduced = 0 if flat or stage >= 2 else PER_REDUCED * tensors
    return PER_GRADIENT[precision][stage] * tensors * micro_batches + reduced


def update_operations(stage: int, precision: str, tensors: int, offloaded: bool = False) -> int:
    """Return the operations that the host starts to update so many tensors with LAMB; `offloaded`: on the device."""
    return PER_OFFLOADED_UPDATE if offloaded else PER_UPDATE + PER_UPDATED[precision][stage] * tensors


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
