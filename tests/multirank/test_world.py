"""Who a process is, by launcher; the small messages; and the helper that starts ranks for the tests."""

import os
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ranks import RankFailed, run

from data_pipeline.errors import UserError
from pretrain.distributed import launch_env
from pretrain.distributed import world as world_module
from pretrain.distributed.deepspeed_patches import refuse_unsupported
from pretrain.distributed.world import World

pytestmark = pytest.mark.slow

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "node7",
    "MASTER_PORT": "1234",
}
DEEPSPEED = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_SIZE": "4",
    "CROSS_RANK": "1",
    "MASTER_ADDR": "node7",
    "MASTER_PORT": "1234",
}
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "7",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_TASKS_PER_NODE": "4,3",
    "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.7",
}


def known(world: World) -> tuple[int, int, int, int, int]:
    return world.rank, world.size, world.local_rank, world.local_size, world.node


@pytest.mark.parametrize("environment", [TORCHRUN, DEEPSPEED])
def test_launchers_say_who_we_are(environment: dict[str, str]) -> None:
    world = World.from_environment(environment)
    assert known(world) == (5, 8, 1, 4, 1)
    assert (world.address, world.port) == ("node7", 1234)


def test_slurm_says_who_we_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")  # no scontrol
    world = World.from_environment(SLURM)
    assert known(world) == (5, 7, 1, 3, 1)
    assert world.address == "10.0.0.7"
    assert world.port == World.from_environment({**SLURM, "SLURM_PROCID": "0"}).port
    assert World.from_environment({**SLURM, "SLURM_STEP_NODELIST": "solo"}).address == "solo"
    assert World.from_environment({**SLURM, "MASTER_ADDR": "chosen"}).address == "chosen"


def test_slurm_node_lists_are_unfolded_by_scontrol(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "scontrol"
    fake.write_text('#!/bin/sh\n[ "$3" = "n[3-4]" ] && printf "n3\\nn4\\n"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert World.from_environment({**SLURM, "SLURM_STEP_NODELIST": "n[3-4]"}).address == "n3"


def test_without_a_launcher_there_is_one_process() -> None:
    assert known(World.from_environment({})) == (0, 1, 0, 1, 0)
    batch_script = {key: value for key, value in SLURM.items() if key != "SLURM_STEP_ID"}
    assert known(World.from_environment(batch_script)) == (0, 1, 0, 1, 0)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"RANK": "8"}, "rank 8 of 8"),
        ({"RANK": "many"}, "RANK=many"),
        ({"LOCAL_RANK": "4"}, "local rank 4 of 4"),
    ],
)
def test_contradictions_of_a_launcher_are_one_line(change: dict[str, str], line: str) -> None:
    with pytest.raises(UserError, match=line):
        World.from_environment({**TORCHRUN, **change})


def test_short_form_of_slurm() -> None:
    assert launch_env._tasks_per_node("4(x2),3") == [4, 4, 3]
    with pytest.raises(UserError):
        launch_env._tasks_per_node("4(x2")


def test_each_rank_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    world = World(local_rank=2, local_size=4, size=4)
    assert world_module._device(world, lambda: 4).index == 2
    assert world_module._device(world, lambda: 1).index == 0  # the launcher shows each rank its own only
    with pytest.raises(UserError, match="4 ranks on a node with 2 GPUs"):
        world_module._device(world, lambda: 2)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    world_module.check_gpus(1)
    with pytest.raises(UserError, match="2 ranks on a machine with 1 GPU"):
        world_module.check_gpus(2)


def test_bf16_that_a_gpu_only_emulates_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    supports = SimpleNamespace(is_bf16_supported=lambda: True, is_fp16_supported=lambda: True)
    deepspeed = SimpleNamespace(accelerator=SimpleNamespace(get_accelerator=lambda: supports))
    world = World(device=torch.device("cuda", 0))
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda _: (7, 5))
    refuse_unsupported(deepspeed, 1, "fp16", world)
    with pytest.raises(
        UserError, match=r"bf16 needs an Ampere GPU or newer, and this one is of capability 7\.5"
    ):
        refuse_unsupported(deepspeed, 1, "bf16", world)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda _: (8, 0))
    refuse_unsupported(deepspeed, 1, "bf16", world)


def test_messages_of_a_single_process_are_free() -> None:
    world = World()
    assert world.broadcast({"a": 1}) == {"a": 1}
    assert world.gather("x") == ["x"]
    assert world.sum_max([1.5, 2], [3]).wait() == ([1.5, 2], [3])


def talk() -> dict[str, Any]:
    world = World.from_environment().start()
    ahead = world.sum_max([2**40 + world.rank, 0.5], [world.rank, -world.rank])
    more = world.sum_max([], [7])
    gathered = world.gather({"rank": world.rank, "text": "é" * (3 * world.rank)})
    result = {
        "gathered": gathered,
        "told": world.broadcast(["from", world.rank]),
        "sums": ahead.wait(),
        "again": ahead.wait(),
        "more": more.wait(),
        "known": known(world),
        "equal": world == replace(world, messages=None),
    }
    world.stop()
    world.stop()
    return result


@pytest.mark.multirank
def test_messages_between_ranks() -> None:
    results = run(talk, 3)
    for rank, result in enumerate(results):
        assert result["gathered"] == [{"rank": r, "text": "é" * (3 * r)} for r in range(3)]
        assert result["told"] == ["from", 0]
        assert result["sums"] == ([3 * 2**40 + 3, 1.5], [2, 0])
        assert isinstance(result["sums"][0][0], int)
        assert result["again"] == result["sums"]
        assert result["more"] == ([], [7])
        assert result["known"] == (rank, 3, rank, 3, 0)


def misbehave(rank_that_does: int, how: str) -> int:
    if int(os.environ["RANK"]) == rank_that_does:
        if how == "raise":
            raise ValueError("broken on purpose")
        if how == "die":
            os._exit(7)
        time.sleep(600)
    elif how != "hang":
        time.sleep(600)  # as a rank would in a collective whose other side is gone
    return 1


@pytest.mark.multirank
@pytest.mark.parametrize(
    ("how", "message"),
    [("raise", "broken on purpose"), ("die", "rank 1 died with exit code 7"), ("hang", r"ranks \[1\]")],
)
def test_a_rank_that_fails_ends_the_run(how: str, message: str) -> None:
    start = time.monotonic()
    with pytest.raises(RankFailed, match=message) as caught:
        run(misbehave, 2, 1, how, timeout=20 if how == "hang" else 120)
    assert time.monotonic() - start < 110
    if how == "raise":
        assert "misbehave" in str(caught.value)  # the rank's own traceback
