"""Short runs to the end on the pretended GPU, whose micro-batches do not wait for it."""

from pathlib import Path

import pytest
from cells import QUIET, STEPS, Cell, ends_without_waits
from pretended import trained

from pretrain.objectives.registry import OBJECTIVES
from tests.command_line import Maskmill
from tests.factories.members import member_settings
from tests.factories.teachers import teacher_settings

pytestmark = [
    pytest.mark.fake_gpu,
    # what DeepSpeed's imports give rise to in a process of pytest's
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]
COMPILED, EAGER, AGAIN = "train.compile=on", "train.compile=off", "train.activation_checkpointing=true"
OFFLOADED = "zero.offload=cpu"
DROPOUT = "encoder.dropout=0.1 encoder.attention_dropout=0.1"  # without it attention has another kernel
FREE = "train.deterministic=false"
ADAMW, MUON, STABLE = "optim.name=adamw", "optim.name=muon", "optim.name=stable_adamw"
CELLS = [  # LAMB unless it says otherwise
    Cell("fp32", 0, f"{EAGER} {ADAMW}"),
    Cell("fp32", 1, EAGER),  # dense tiles of near-equal lengths, no flash attention
    Cell("bf16", 0, EAGER),
    Cell("bf16", 1, EAGER),
    Cell("fp16", 1, EAGER),
    Cell("fp16", 1, f"{EAGER} {AGAIN}"),
    Cell("fp16", 2, f"{EAGER} {ADAMW}"),
    Cell("bf16", 2, f"{EAGER} {ADAMW} {OFFLOADED}", 16),
    Cell("bf16", 3, EAGER, 1),
    Cell("bf16", 1, COMPILED),
    Cell("bf16", 0, COMPILED),
    Cell("bf16", 2, COMPILED),
    Cell("fp16", 1, COMPILED),
    Cell("bf16", 1, f"{COMPILED} {AGAIN}"),
    Cell("bf16", 1, f"{EAGER} {MUON}"),
    Cell("bf16", 1, f"{EAGER} {STABLE}"),
    Cell("bf16", 3, f"{EAGER} {ADAMW} {AGAIN}", 1),
    Cell("bf16", 3, f"{EAGER} {ADAMW} {OFFLOADED}", 1),
    # what the others leave out, in pairs
    Cell("bf16", 1, f"{COMPILED} {ADAMW} {DROPOUT} {FREE}"),
    Cell("bf16", 1, f"{COMPILED} {STABLE} {OFFLOADED} {DROPOUT} {AGAIN}", 16),
    Cell("bf16", 2, f"{COMPILED} {MUON} {OFFLOADED}", 16),
    Cell("fp32", 2, f"{EAGER} {MUON} {DROPOUT}"),
    Cell("fp32", 3, f"{EAGER} {AGAIN} {FREE}", 1),
    Cell("fp16", 3, f"{EAGER} {ADAMW} {DROPOUT}", 1),
]


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_run_ends_and_does_not_wait(tiny: list[str], tmp_path: Path, cell: Cell) -> None:
    ends_without_waits(cell, tiny, tmp_path)


def test_every_precision_runs_at_every_stage() -> None:
    every = {(precision, stage) for precision in ("fp32", "bf16", "fp16") for stage in range(4)}
    assert {(cell.precision, cell.stage) for cell in CELLS} == every - {("fp16", 0)}, "which is refused"


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_trains(tiny: list[str], maskmill: Maskmill, tmp_path: Path, objective: str) -> None:
    settings = [*tiny, *member_settings(objective, maskmill, tmp_path), f"data.out={tmp_path}/shards", *QUIET]
    maskmill("prepare", "demo", *settings)
    settings += teacher_settings(settings, tmp_path / "teacher")
    trained(tmp_path, STEPS, [*settings, "train.precision=bf16", EAGER])
