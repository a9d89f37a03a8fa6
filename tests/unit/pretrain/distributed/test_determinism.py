"""Threads of a rank, and how torch is set up before it computes."""

import os

import pytest
import torch

from pretrain.config.settings import RunConfig
from pretrain.distributed.determinism import own_cores, ranks_sharing_cores, set_arithmetic
from pretrain.distributed.world import World


@pytest.mark.parametrize(
    ("bound", "cores"),
    [
        ([range(12)] * 8, 1),  # not bound: divided
        ([range(12 * r, 12 * r + 12) for r in range(8)], 12),  # each to its own
        ([range(48 * (r // 4), 48 * (r // 4) + 48) for r in range(8)], 12),  # four to each socket
    ],
)
def test_cores_are_divided_among_the_ranks_that_share_them(
    monkeypatch: pytest.MonkeyPatch, bound: list[range], cores: int
) -> None:
    told: list[list[object]] = []
    for rank, mine in enumerate(bound):  # the first node's ranks have the same numbers of cores
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, mine=mine: set(mine))
        world = World(rank=8 + rank, size=16, node=1)
        monkeypatch.setattr(World, "gather", lambda _, value: told.append(value) or told)
        ranks_sharing_cores(world)
    others = [[0, cores_of] for _, cores_of in told]
    for rank, mine in enumerate(bound):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, mine=mine: set(mine))
        monkeypatch.setattr(World, "gather", lambda *_: others + told[: len(bound)])
        sharing = ranks_sharing_cores(World(rank=8 + rank, size=16, node=1))
        assert own_cores({"RANK": "8"}, sharing) == cores


def test_products_of_half_precision_are_summed_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = torch.backends.cuda.matmul
    names = [f"allow_{kind}_reduced_precision_reduction" for kind in ("bf16", "fp16")]
    before = [getattr(flags, name) for name in names]
    deterministic = torch.are_deterministic_algorithms_enabled()
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    config = RunConfig()
    config.train.deterministic = deterministic
    for name in names:
        setattr(flags, name, True)
    try:
        set_arithmetic(config)
        assert [getattr(flags, name) for name in names] == [False, False]
    finally:
        for name, value in zip(names, before, strict=True):
            setattr(flags, name, value)


def test_an_operation_that_is_not_deterministic_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning alone would let CUDA's attention add gradients in any order."""
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    try:
        set_arithmetic(RunConfig())
        with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
            torch.zeros(2).put_(torch.zeros(2, dtype=torch.long), torch.ones(2))
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
