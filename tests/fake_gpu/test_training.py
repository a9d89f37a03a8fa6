"""Short runs to the end on the pretended GPU, and what each step of them costs: launches, copies and waits."""

from pathlib import Path

import pytest
from budgets import QUIET, STEPS, Case, keeps_to, plain, show
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
CASES = [  # LAMB unless it says otherwise
    Case("fp32", 0, f"{EAGER} {ADAMW}", (405, 72, 0), (237, 1, 1)),
    Case(
        "fp32", 1, EAGER, (407, 88, 0), (195, 11, 1)
    ),  # dense tiles of near-equal lengths, no flash attention
    Case("bf16", 0, EAGER, (471, 44, 0), (691, 8, 7)),
    Case("bf16", 1, EAGER, (408, 29, 0), (70, 7, 2)),
    Case("fp16", 1, EAGER, (457, 60, 0), (195, 9, 1)),
    Case("fp16", 1, f"{EAGER} {AGAIN}", (485, 62, 0), (195, 9, 1)),
    Case("fp16", 2, f"{EAGER} {ADAMW}", (461, 75, 0), (186, 7, 1)),
    Case("bf16", 2, f"{EAGER} {ADAMW} {OFFLOADED}", (676, 167, 16), (31, 54, 53)),
    Case("bf16", 3, EAGER, (442, 44, 1), (196, 15, 4)),
    Case("bf16", 1, COMPILED, (311, 23, 0), (70, 7, 2)),
    Case("bf16", 0, COMPILED, (373, 38, 0), (691, 8, 7)),
    Case("bf16", 2, COMPILED, (364, 69, 0), (195, 9, 1)),
    Case("fp16", 1, COMPILED, (358, 50, 0), (195, 9, 1)),
    Case("bf16", 1, f"{COMPILED} {AGAIN}", (332, 23, 0), (70, 7, 2)),
    Case("bf16", 1, f"{EAGER} {MUON}", (408, 29, 0), (338, 157, 2)),
    Case("bf16", 1, f"{EAGER} {STABLE}", (408, 29, 0), (74, 5, 2)),
    Case("bf16", 3, f"{EAGER} {ADAMW} {AGAIN}", (470, 46, 1), (187, 13, 4)),
    Case("bf16", 3, f"{EAGER} {ADAMW} {OFFLOADED}", (504, 136, 1), (136, 10, 9)),
    # what the others leave out, in pairs
    Case("bf16", 1, f"{COMPILED} {ADAMW} {DROPOUT} {FREE}", (225, 15, 0), (61, 5, 2)),
    Case("bf16", 1, f"{COMPILED} {STABLE} {OFFLOADED} {DROPOUT} {AGAIN}", (596, 146, 16), (31, 54, 53)),
    Case("bf16", 2, f"{COMPILED} {MUON} {OFFLOADED}", (579, 161, 16), (32, 57, 55)),
    # compiled, since a product takes numbers of tokens that 16 divides
    Case("fp32", 2, f"{EAGER} {MUON} {DROPOUT}", (418, 149, 0), (480, 163, 1)),
    Case("fp32", 3, f"{EAGER} {AGAIN} {FREE}", (380, 122, 1), (194, 17, 4)),
    Case("fp16", 3, f"{EAGER} {ADAMW} {DROPOUT}", (446, 44, 1), (197, 16, 5)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_run_ends_within_its_budget(tiny: list[str], tmp_path: Path, case: Case) -> None:
    keeps_to(case, tiny, tmp_path)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_trains(tiny: list[str], maskmill: Maskmill, tmp_path: Path, objective: str) -> None:
    settings = [*tiny, *member_settings(objective, maskmill, tmp_path), f"data.out={tmp_path}/shards", *QUIET]
    maskmill("prepare", "demo", *settings)
    settings += teacher_settings(settings, tmp_path / "teacher")
    for step in plain(trained(tmp_path, STEPS, [*settings, "train.precision=bf16", EAGER])):
        show(objective, step)
