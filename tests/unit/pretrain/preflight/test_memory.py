"""What a pass takes, counted by hand beside; and counts that are kept only as long as they are true."""

import os
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from data_pipeline.errors import UserError
from launch.recipe import load_config
from pretrain.objectives.registry import load
from pretrain.preflight import memory as module
from pretrain.preflight.forecast import forecast_phases
from pretrain.preflight.gpus import gpu_named
from pretrain.preflight.memory import (
    PeakBytes,
    check_stream_memory,
    meta_model,
    pass_peak,
    pass_peaks,
    states,
)
from pretrain.preflight.show import show_phases
from pretrain.preflight.step_time import Cluster
from pretrain.training.stream_memory import StreamMemory


def test_peak_bytes_of_a_pass_that_can_be_counted_by_hand() -> None:
    x = torch.empty(1000, device="meta")
    with PeakBytes() as counter:
        a = x * 2  # 4,000 bytes
        b = a + 1  # 8,000
        c = b.view(10, 100)  # the same storage
        del a, b
        d = c * 3  # 8,000 again
    assert (counter.live, counter.peak) == (8000, 8000)
    del c, d
    assert counter.live == 0


def test_a_pass_keeps_less_with_activation_checkpointing_and_grows_with_its_examples() -> None:
    config = load_config("bert_base", [])
    kept = pass_peak(meta_model(config, 30_522), "bf16", 8, 128, 20)
    assert pass_peak(meta_model(config, 30_522), "bf16", 16, 128, 20) > 1.5 * kept
    config.train.activation_checkpointing = True
    assert pass_peak(meta_model(config, 30_522), "bf16", 8, 128, 20) < kept / 2


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """The arguments of each pass that is really counted; the cache is an empty one."""
    calls: list[Any] = []

    def watched(model: Any, *arguments: Any) -> int:
        calls.append(arguments)
        return pass_peak(model, *arguments)

    monkeypatch.setattr(module, "pass_peak", watched)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return calls


def peaks(*overrides: str, recipe: str = "bert_tiny", precision: str = "bf16", words: int = 300) -> list[int]:
    config = load_config(recipe, list(overrides))
    return pass_peaks(meta_model(config, words), config, precision)


def test_what_was_counted_is_kept(counted: list[Any]) -> None:
    first = peaks()
    assert len(counted) == 2
    assert peaks("train.micro_batch=3", "zero.stage=0", "optim.lr=1") == first
    assert len(counted) == 2


@pytest.mark.parametrize(
    "other",
    [
        {"overrides": ["encoder.layers=1"]},
        {"overrides": ["data.masked_lm_prob=0.4"]},
        {"overrides": ["data.sequence_length=64"]},
        {"overrides": ["train.activation_checkpointing=true"]},
        {"recipe": "mlm_tiny"},
        {"precision": "fp32"},
        {"words": 4000},
    ],
)
def test_what_decides_the_counts_has_them_counted_anew(counted: list[Any], other: dict[str, Any]) -> None:
    first = peaks()
    assert peaks(*other.pop("overrides", []), **other) != first
    assert len(counted) == 4


def test_other_sources_or_another_torch_count_anew(
    counted: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    peaks()
    with monkeypatch.context() as other:
        other.setattr(module, "hash_sources", lambda package: "edited")
        peaks()
    assert len(counted) == 4
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    peaks()
    assert len(counted) == 6


@pytest.mark.parametrize("damaged", ["", "[1, 2", "[1]", "[[1, 2], [3, 4]]", '{"peak": 3}', "\x00"])
def test_a_damaged_cache_is_counted_and_written_anew(
    counted: list[Any], tmp_path: Path, damaged: str
) -> None:
    first = peaks()
    (kept,) = (tmp_path / "cache/maskmill/passes").iterdir()
    kept.write_text(damaged)
    assert peaks() == first
    assert len(counted) == 4
    assert peaks() == first
    assert len(counted) == 4


def test_without_a_cache_that_can_be_written_passes_are_counted(
    counted: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("a file")
    first = peaks()
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME", raising=False)
    assert peaks() == first
    assert len(counted) == 4
    assert os.listdir(tmp_path) == ["cache"]


# A plan counts what a model remembers of its streams, as large as the tensors that training keeps.


MEMORY = [
    *("objective.xlnet.memory_length=16", "data.order=sequential", "data.streams=0"),
    *("train.global_batch=30", "run.dir=unused"),
]


def test_a_plan_counts_the_memory_of_a_ranks_streams() -> None:
    config = load_config("xlnet_tiny", MEMORY)
    found = states(meta_model(config, 100), config, "fp32", 4).streams
    kept = StreamMemory(load(config).memory, 30, 0, 8)  # of 30 streams a rank of four has at most 8
    assert found == sum(rows.numel() * rows.element_size() for rows in kept._rows.values()) > 0
    config.objective.xlnet.memory_length = 0
    without = states(meta_model(config, 100), config, "fp32", 4)
    assert without.streams == 0


def test_a_memory_that_cannot_fit_is_refused_before_ranks_start() -> None:
    config = load_config("xlnet_tiny", [*MEMORY, "objective.xlnet.memory_length=65000"])
    taken = states(meta_model(config, 100), config, "fp32", 4).streams
    check_stream_memory(config, 4, float(taken))
    message = r"remembers [\d.]+ GB of a rank's 8 streams, and a GPU has [\d.]+ GB .*memory_length"
    with pytest.raises(UserError, match=message):
        check_stream_memory(config, 4, taken - 1.0)
    config.train.global_batch = 10**9
    with pytest.raises(UserError, match="a rank's share of this machine has"):
        check_stream_memory(config, 4, None)
    config.objective.xlnet.memory_length = 0
    check_stream_memory(config, 4, 1.0)


def test_it_counts_against_what_fits_and_is_shown() -> None:
    cluster = Cluster(1, 1, gpu_named("h100"))
    small, large = (
        forecast_phases(
            load_config("xlnet_tiny", [*MEMORY, f"objective.xlnet.memory_length={length}"]), cluster
        )
        for length in (16, 16_000)
    )
    assert large[0][1].memory[0].total - small[0][1].memory[0].total > 1e9
    assert large[0][1].memory[0].largest_micro_batch < small[0][1].memory[0].largest_micro_batch
    for found, row in ((small, True), (forecast_phases(load_config("demo", []), cluster), False)):
        console = Console(width=200, file=StringIO())
        show_phases(found, 1, console, 0.0)
        assert ("memory of streams" in console.file.getvalue()) == row
