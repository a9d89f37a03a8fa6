"""The peak of a device: stated, or measured on a CPU."""

import pytest
import torch

from pretrain.preflight import step_time
from pretrain.preflight.step_time import peak_flops, peak_source

CPU = torch.device("cpu")


def test_what_is_stated_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "mm", lambda *_: pytest.fail("it is measured"))
    assert (peak_flops(CPU, 0.5), peak_source(CPU, 0.5)) == (5e11, "stated")


def test_a_cpu_has_the_rate_of_its_fastest_product(monkeypatch: pytest.MonkeyPatch) -> None:
    took, clock = iter([3.0, 2.0, 0.5, 1.0, 4.0]), [0.0]

    def product(a: torch.Tensor, b: torch.Tensor) -> None:
        assert a.shape == b.shape == (1024, 1024)
        clock[0] += next(took)

    monkeypatch.setattr(step_time.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(torch, "mm", product)
    assert (peak_flops(CPU, 0.0), peak_source(CPU, 0.0)) == (2 * 1024**3 / 0.5, "measured")
