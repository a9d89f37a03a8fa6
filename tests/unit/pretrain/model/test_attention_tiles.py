"""Arrays made for a micro-batch reach a GPU without a wait. That they do on CUDA: tests/fake_gpu/test_training.py."""

import numpy as np
import pytest
import torch

from pretrain.model.attention_tiles import CAUSAL, plan_tiles, to_device

GPU = torch.device("cuda", 0)


@pytest.fixture
def page_locked(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """What is copied to page-locked memory, on a stand-in of a GPU that takes no other copy."""
    copied: list[torch.Tensor] = []

    def pin_memory(tensor: torch.Tensor) -> torch.Tensor:
        copied.append(tensor)
        return tensor

    def to(tensor: torch.Tensor, device: torch.device, non_blocking: bool = False) -> torch.Tensor:
        assert device == GPU
        assert non_blocking, "the host would wait"
        assert any(tensor is one for one in copied), "from memory that is not page-locked"
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    monkeypatch.setattr(torch.Tensor, "to", to)
    return copied


def test_an_array_is_copied_by_page_locked_memory(page_locked: list[torch.Tensor]) -> None:
    assert to_device(np.arange(3), GPU).tolist() == [0, 1, 2]
    assert len(page_locked) == 1


def test_a_plan_of_tiles_is_copied_so(page_locked: list[torch.Tensor]) -> None:
    plan = plan_tiles([3, 5], heads=2, device=GPU)
    assert len(page_locked) == 4, "rows both ways, padding, and the bias of the one tile"
    assert plan.tiles[0].hidden(CAUSAL, GPU) is not None


def test_a_cpu_shares_the_memory() -> None:
    array = np.arange(3)
    assert to_device(array, torch.device("cpu")).data_ptr() == array.ctypes.data
