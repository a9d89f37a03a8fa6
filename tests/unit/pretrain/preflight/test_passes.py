"""What a pass takes, counted by hand beside; and counts that are kept only as long as they are true."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from launch.recipe import load_config
from pretrain.preflight import memory as module
from pretrain.preflight.memory import PassCost, PeakBytes, meta_model, pass_cost, pass_costs


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


def test_operations_are_counted_but_for_views() -> None:
    x = torch.empty(10, 10, device="meta")
    with PeakBytes() as counter:
        (x @ x).view(100).add_(1).t()
    assert (counter.operations, counter.products) == (2, 1)


def test_a_pass_keeps_less_with_activation_checkpointing_and_grows_with_its_examples() -> None:
    config = load_config("bert_base", [])
    kept = pass_cost(meta_model(config, 30_522), "bf16", 8, 128, 20).peak
    assert pass_cost(meta_model(config, 30_522), "bf16", 16, 128, 20).peak > 1.5 * kept
    config.train.activation_checkpointing = True
    assert pass_cost(meta_model(config, 30_522), "bf16", 8, 128, 20).peak < kept / 2


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """The arguments of each pass that is really counted; the cache is an empty one."""
    calls: list[Any] = []

    def watched(model: Any, *arguments: Any) -> PassCost:
        calls.append(arguments)
        return pass_cost(model, *arguments)

    monkeypatch.setattr(module, "pass_cost", watched)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return calls


def costs(
    *overrides: str, recipe: str = "bert_tiny", precision: str = "bf16", words: int = 300
) -> list[PassCost]:
    config = load_config(recipe, list(overrides))
    return pass_costs(meta_model(config, words), config, precision)


def test_what_was_counted_is_kept(counted: list[Any]) -> None:
    first = costs()
    assert len(counted) == 2
    assert costs("train.micro_batch=3", "zero.stage=0", "optim.lr=1") == first
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
    first = costs()
    assert costs(*other.pop("overrides", []), **other) != first
    assert len(counted) == 4


def test_other_sources_or_another_torch_count_anew(
    counted: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    costs()
    with monkeypatch.context() as other:
        other.setattr(module, "hash_sources", lambda package: "edited")
        costs()
    assert len(counted) == 4
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    costs()
    assert len(counted) == 6


@pytest.mark.parametrize("damaged", ["", "[[1, 2", "[[1, 2, 3]]", "[[1, 2], [3, 4]]", '{"peak": 3}', "\x00"])
def test_a_damaged_cache_is_counted_and_written_anew(
    counted: list[Any], tmp_path: Path, damaged: str
) -> None:
    first = costs()
    (kept,) = (tmp_path / "cache/maskmill/passes").iterdir()
    kept.write_text(damaged)
    assert costs() == first
    assert len(counted) == 4
    assert costs() == first
    assert len(counted) == 4


def test_without_a_cache_that_can_be_written_passes_are_counted(
    counted: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("a file")
    first = costs()
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME", raising=False)
    assert costs() == first
    assert len(counted) == 4
    assert os.listdir(tmp_path) == ["cache"]
