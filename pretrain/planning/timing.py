"""Estimate the seconds of one step from sizes and links. A model of few terms, each stated; nothing is fitted to a
run.

    step = arithmetic x (1 + straggling) + optimizer + communication

arithmetic      operations of the model / (peak x utilisation); utilisation is an assumption, or measured
straggling      ranks wait for the slowest: the expected largest of W normal draws, in deviations of DEVIATION
optimizer       LAMB's two passes: BYTES_A_PARAMETER of memory traffic for each parameter that a rank updates
communication   reduce-scatter and all-gather in rings: inside the node over all of the data, between nodes over each
                GPU's part of it, one after the other, at LINK_EFFICIENCY of the stated bandwidth; not overlapped
"""

from statistics import NormalDist
from typing import NamedTuple

from pretrain.planning.hardware import LINK_EFFICIENCY, Gpu

DEVIATION = 0.01
"""Standard deviation of a rank's step time, as a share of it."""
BYTES_A_PARAMETER = 42
"""LAMB in mixed precision: reads gradient, weight and two moments, writes the moments and the update; reads weight
and update, writes weight and its half-precision copy."""


class Cluster(NamedTuple):
    """Nodes of equal GPUs."""

    nodes: int
    gpus_per_node: int
    gpu: Gpu

    @property
    def ranks(self) -> int:
        return self.nodes * self.gpus_per_node


class StepTime(NamedTuple):
    """Seconds of one optimizer step."""

    arithmetic: float
    straggling: float
    optimizer: float
    communication: float

    @property
    def total(self) -> float:
        return sum(self)


def collective_seconds(size: float, cluster: Cluster) -> float:
    """A reduce-scatter or an all-gather of `size` bytes over all ranks; an all-reduce is both. Rings: each GPU sends
    (n - 1) / n of the data to its neighbour inside the node, and of its n-th part to other nodes."""
    inside, nodes = cluster.gpus_per_node, cluster.nodes
    within = (inside - 1) / inside * size / (cluster.gpu.inside * LINK_EFFICIENCY)
    across = (nodes - 1) / nodes * size / inside / (cluster.gpu.between * LINK_EFFICIENCY)
    return within + across


def communication_bytes(
    stage: int, parameters: int, micro_batches: int, gradient_bytes: int, weight_bytes: int
) -> float:
    """Bytes that go through a reduce-scatter or an all-gather in one step at a ZeRO stage: gradients once (stage 2
    and 3: at every micro-batch), updated weights once (stage 3: gathered for each forward and backward pass)."""
    gradients, weights = parameters * gradient_bytes, parameters * weight_bytes
    if stage == 0:
        return 2.0 * gradients  # an all-reduce
    if stage == 1:
        return float(gradients + weights)
    if stage == 2:
        return float(micro_batches * gradients + weights)
    return float(micro_batches * (gradients + 2 * weights))


def straggling(ranks: int) -> float:
    """By how much the slowest of `ranks` ranks exceeds their mean, as a share (Blom 1958's approximation of the
    expected largest of so many normal draws)."""
    if ranks == 1:
        return 0.0
    return DEVIATION * NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))


def optimizer_seconds(parameters_updated: float, gpu: Gpu) -> float:
    """LAMB's update of so many parameters on one GPU, at the data sheet's memory bandwidth."""
    return parameters_updated * BYTES_A_PARAMETER / gpu.memory_bandwidth


def step_time(arithmetic: float, parameters_updated: float, moved: float, cluster: Cluster) -> StepTime:
    """Of a step whose arithmetic takes `arithmetic` seconds on one rank and whose collectives move `moved` bytes."""
    return StepTime(
        arithmetic,
        arithmetic * straggling(cluster.ranks),
        optimizer_seconds(parameters_updated, cluster.gpu),
        collective_seconds(moved, cluster) if cluster.ranks > 1 else 0.0,
    )
