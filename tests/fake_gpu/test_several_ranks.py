"""Runs of two ranks on two pretended GPUs: to the end without waits in a micro-batch, stopped and resumed."""

from pathlib import Path

import pytest
from cells import Cell, ends_without_waits
from pretended import ZEROS, on_gpu

pytestmark = [
    pytest.mark.fake_gpu,
    # what DeepSpeed's imports give rise to in a process of pytest's
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]
RANKS = 2
COMPILED, EAGER = "train.compile=on", "train.compile=off"
DROPOUT = "encoder.dropout=0.1 encoder.attention_dropout=0.1"
CELLS = [
    Cell("bf16", 0, COMPILED),
    Cell("bf16", 1, f"{COMPILED} {DROPOUT}"),
    Cell("bf16", 2, COMPILED),
    Cell("bf16", 3, EAGER, 1),
    Cell("fp32", 1, EAGER),
    Cell("fp16", 1, EAGER),
    Cell("bf16", 1, f"{EAGER} optim.name=muon"),
]


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_two_ranks_end_and_do_not_wait(tiny: list[str], tmp_path: Path, cell: Cell) -> None:
    ends_without_waits(cell, tiny, tmp_path, RANKS)


@pytest.mark.parametrize("stage", [1, 3])
def test_two_ranks_stop_and_resume(tiny: list[str], tmp_path: Path, stage: int) -> None:
    """As `maskmill train` starts them itself; at last as one rank alone."""
    run = tmp_path / "run"
    settings = [
        *tiny,
        f"run.dir={run}",
        f"zero.stage={stage}",
        "train.precision=bf16",
        "train.compile=off",
        "train.steps=6",
    ]

    def train(ranks: int, *more: str) -> str:
        command = ("-m", "launch.cli", "train", "demo", *settings, f"run.ranks={ranks}", *more)
        said = on_gpu(*command, FAKE_GPU_DEVICES=str(ranks), **ZEROS).stdout
        for log in run.glob("**/rank-*.log"):
            assert "[fake gpu] mistake" not in log.read_text("utf-8")
        return said

    assert "all-reduce of 64 MiB" in train(RANKS, "run.stop_after=2")
    assert "resume" in train(RANKS, "run.stop_after=4")
    assert "step 6/6" in train(1)
