"""The commands of tests/benchmarks/bench_gpu.py start and end on the pretended GPU; their figures mean nothing."""

import pytest
from pretended import on_gpu

pytestmark = pytest.mark.fake_gpu

BENCHMARK = "tests/benchmarks/bench_gpu.py"


@pytest.mark.parametrize("engine", ["plain", "deepspeed"])
@pytest.mark.parametrize("compiled", ["on", "off"])
def test_it_ends(engine: str, compiled: str) -> None:
    row = "large-512" if engine == "deepspeed" else "base-128"
    command = [
        "--engine",
        engine,
        "--row",
        row,
        "--compile",
        compiled,
        "--tiny",
        "--steps",
        "1",
        "--windows",
        "1",
    ]
    said = on_gpu(BENCHMARK, *command).stdout
    assert "waits for the device in forward, backward, copies: none" in said
    assert f"{row}: " in said
