"""What the parts of the first hour with a GPU compare: runs of which none is trained here."""

import json
import math
import time
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from launch.settings.recipe import load_config
from pretrain.model.attention.attend import choose_backend
from tests.gpu_day import checks, measurements, runs


class Trained(NamedTuple):
    """Runs: each leaves what the parts read of it."""

    settings: list[list[str]]
    losses: dict[str, float]
    """Held-out, by the name of the run's folder."""


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> Trained:
    found = Trained([], {})

    def train(day: runs.Day, run: Path, shards: str, *settings: str) -> None:
        found.settings.append(list(settings))
        (run / "checkpoints/step-1").mkdir(parents=True, exist_ok=True)
        (run / "checkpoints/latest").write_text("step-1\n")
        (run / "checkpoints/step-1/checkpoint.json").write_text(
            '{"files": [{"file": "0", "sha256": "same"}]}'
        )
        line = {"held_out_mask_loss": found.losses[run.name]} if run.name in found.losses else {}
        (run / "metrics.jsonl").write_text(json.dumps(line) + "\n")

    monkeypatch.setattr(runs.Day, "train", train)
    return found


def test_runs_that_are_compared_by_bytes_attend_as_bert_base_does(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        checks, "kill_after", lambda day, run, settings, checkpoints: day.train(run, "long", *settings)
    )
    given = runs.Day(tmp_path, tmp_path, {}, tiny=False, ends=time.monotonic() + 60)
    for part in (
        checks.twice,
        checks.resume,
        checks.resume,
    ):  # the second time without a whole run of `twice`
        part(given, {})
    assert len(trained.settings) == 2 + 2 + 3
    base = load_config("bert_base", []).encoder
    for settings in trained.settings:
        encoder = load_config("bert_mini", settings).encoder
        assert (encoder.dropout, encoder.attention_dropout) == (base.dropout, base.attention_dropout)
        gpu, size = torch.device("meta"), encoder.head_size
        assert choose_backend(gpu, torch.bfloat16, size, encoder.attention_dropout) == "flash"


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        ({"bf16": 5.60, "fp8": 5.64}, ""),
        ({"bf16": 5.60, "fp8": 5.66}, "0.060 apart"),
        ({"bf16": 5.60}, "nan apart"),
        ({"bf16": math.nan, "fp8": math.nan}, "nan apart"),
    ],
)
def test_losses_in_fp8_are_compared_with_those_in_bf16(
    losses: dict[str, float], said: str, trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained.losses.update(losses)
    monkeypatch.setattr(runs.Day, "python", lambda *_: (tmp_path / "fp8.json").write_text("[]"))
    given = runs.Day(tmp_path, tmp_path, {}, tiny=False, ends=time.monotonic() + 60)
    with pytest.raises(runs.Failed, match=said) if said else nullcontext():
        measurements.fp8(given, {})
    assert len(trained.settings) == 2
