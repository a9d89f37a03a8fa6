"""Threads of a rank, and how torch is set up before it computes."""

import os

import pytest
import torch

from pretrain.config.settings import RunConfig
from pretrain.distributed import world as determinism
from pretrain.distributed.world import (
    World,
    own_cores,
    ranks_sharing_cores,
    set_arithmetic,
    set_threads,
    settle_products,
)


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


@pytest.mark.parametrize(("stated", "threads"), [(0, 12), (3, 3)])
def test_a_rank_that_is_bound_has_a_thread_for_each_of_its_cores(
    stated: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight ranks of a node, each bound to twelve cores, of which there is nothing to divide; run.threads decides."""
    of_ranks = [set(range(12 * rank, 12 * rank + 12)) for rank in range(8)]
    told = [[0, hex(sum(1 << core for core in cores))] for cores in of_ranks]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: of_ranks[3])
    monkeypatch.setattr(World, "gather", lambda *_: told)
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setattr(torch, "set_num_threads", (found := []).append)
    config = RunConfig()
    config.run.threads = stated
    set_threads(config, World(rank=3, size=8, local_rank=3, local_size=8))
    assert found == [threads]


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


@pytest.mark.parametrize("asks_again", [False, True])
def test_the_variable_of_cublas_goes_once_torch_has_seen_it(
    asks_again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch would parse it at each product. It stays where a product is refused without it."""
    seen = []

    def multiply(device: torch.device) -> None:
        seen.append(os.environ.get(determinism.CUBLAS))
        if seen[-1] is None and asks_again:
            raise RuntimeError("Deterministic behavior was enabled")

    monkeypatch.setattr(determinism, "_multiply", multiply)
    monkeypatch.setenv(determinism.CUBLAS, determinism.CUBLAS_MEMORY)
    settle_products(torch.device("cuda"))
    assert seen == [":4096:8", None]
    assert (determinism.CUBLAS in os.environ) == asks_again


def test_what_a_user_has_set_for_cublas_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(determinism, "_multiply", lambda device: pytest.fail("nothing to settle"))
    monkeypatch.setenv(determinism.CUBLAS, ":16:8")
    settle_products(torch.device("cuda"))
    monkeypatch.setenv(determinism.CUBLAS, determinism.CUBLAS_MEMORY)
    settle_products(torch.device("cpu"))
    assert os.environ[determinism.CUBLAS] == determinism.CUBLAS_MEMORY
