"""Several pretended GPUs, one for each rank: what their collectives move, and what they refuse."""

import pytest
from pretended import HERE, on_gpu, on_gpus, ranks

pytestmark = pytest.mark.fake_gpu

SCRIPT = str(HERE / "exchanges.py")


def test_collectives_move_what_each_rank_gives() -> None:
    for rank, done in enumerate(on_gpus(ranks(3), SCRIPT, "collectives")):
        said = done.stdout.splitlines()
        assert said[0] == f"device {rank} cuda:{rank} 3"
        assert said[1:10] == [
            *["reduced [3.0, 33.0]", "reduced [3, 33]", "reduced [3, 33]"],
            *["reduced [2.0, 12.0]", "reduced [2, 12]", "reduced [2, 12]"],
            *["reduced [0.0, 10.0]", "reduced [0, 10]", "reduced [0, 10]"],
        ]
        assert said[10:] == [
            "from 1 [6.0]",
            "gathered [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]",
            f"scattered [{300 + 3 * rank:.1f}]",
            f"swapped {[float(100 * other + rank) for other in range(3) for _ in range(rank + 1)]}",
            "long True",
            *(["two of them [3.0]"] if rank < 2 else []),
        ]


def test_ranks_that_do_not_agree_are_refused() -> None:
    for done in on_gpus(ranks(2), SCRIPT, "unequal", mistakes=True):
        assert done.stdout.splitlines() == ["refused"]
        assert "ncclAllReduce of 8 bytes" in done.stderr


@pytest.mark.parametrize(("visible", "number"), [("0", 1), ("0,1,2", 3), ("", 0)])
def test_a_process_sees_the_devices_that_it_may(visible: str, number: int) -> None:
    script = "import torch; print(torch.cuda.device_count())"
    assert on_gpu("-c", script, FAKE_GPU_DEVICES="4", CUDA_VISIBLE_DEVICES=visible).stdout.split() == [
        str(number)
    ]
