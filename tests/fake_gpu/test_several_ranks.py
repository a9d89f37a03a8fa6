"""Runs of two ranks on two pretended GPUs: to the end within a budget, stopped and resumed."""

from pathlib import Path

import pytest
from budgets import Case, keeps_to
from pretended import ZEROS, on_gpu

pytestmark = [
    pytest.mark.fake_gpu,
    # what DeepSpeed's imports give rise to in a process of pytest's
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]
RANKS = 2
COMPILED, EAGER = "train.compile=on", "train.compile=off"
DROPOUT = "encoder.dropout=0.1 encoder.attention_dropout=0.1"
WHOLE = Case("bf16", 1, f"{COMPILED} {DROPOUT}", (310, 24, 0), (73, 7, 2))
CASES = [
    Case("bf16", 0, COMPILED, (376, 46, 0), (691, 8, 7)),
    WHOLE,
    Case("bf16", 2, COMPILED, (318, 69, 0), (156, 9, 1)),
    Case("bf16", 3, EAGER, (431, 52, 1), (243, 15, 4)),
    Case("fp32", 1, EAGER, (398, 94, 0), (156, 11, 1)),
    Case("fp16", 1, EAGER, (443, 64, 0), (156, 9, 1)),
    Case("bf16", 1, f"{EAGER} optim.name=muon", (404, 30, 0), (206, 81, 2)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_two_ranks_end_within_their_budget(tiny: list[str], tmp_path: Path, case: Case) -> None:
    steps = keeps_to(case, tiny, tmp_path, RANKS)
    if case is WHOLE:
        for step in steps:
            assert step["norms"] == {"measured": 2, "clipped": 2}, (
                "the flat sums of two groups, which are clipped"
            )


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
