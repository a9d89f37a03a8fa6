"""Short runs to the end on the pretended GPU, and what each step of them costs: launches, copies and waits."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pretended import HERE, ONLY_RANK, ZEROS, on_gpu

from pretrain.objectives.registry import OBJECTIVES
from tests.command_line import Maskmill
from tests.factories.members import member_settings
from tests.factories.teachers import teacher_settings

pytestmark = [
    pytest.mark.fake_gpu,
    # what DeepSpeed's imports give rise to in a process of pytest's
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]
STEPS = 7
QUIET = [f"train.steps={STEPS}", "train.log_every=6", "train.checkpoint_every=100", "run.ranks=1"]
"""Step 1 and 6 are logged; the third to fifth do nothing but train."""
PLAIN = slice(2, 5)
WAITS_A_STEP = 4


class Case(NamedTuple):
    """A run, eager unless it says otherwise."""

    precision: str
    stage: int
    launches: int = 0
    """How many a micro-batch may take; 0: not measured, and no budget at all."""
    more: tuple[str, ...] = ("train.compile=off",)


EAGER, ADAMW = "train.compile=off", "optim.name=adamw"
CASES = {
    "stage 0, fp32, AdamW": Case("fp32", 0, more=(EAGER, ADAMW)),
    "stage 1, fp32, LAMB": Case("fp32", 1, 450),  # 407: dense tiles of near-equal lengths, no flash attention
    "stage 0, bf16, LAMB": Case("bf16", 0),
    "stage 1, bf16, LAMB": Case("bf16", 1, 400),  # 357
    "stage 1, fp16, LAMB": Case("fp16", 1, 400),  # 358
    "stage 1, fp16, recomputed": Case("fp16", 1, more=(EAGER, "train.activation_checkpointing=true")),
    "stage 2, fp16, AdamW": Case("fp16", 2, more=(EAGER, ADAMW)),
    "stage 2, bf16, offloaded": Case("bf16", 2, more=(EAGER, ADAMW, "zero.offload=cpu")),
    "stage 3, bf16, LAMB": Case("bf16", 3),
    "stage 1, bf16, compiled": Case("bf16", 1, more=("train.compile=on",)),
    "stage 0, bf16, compiled": Case("bf16", 0, more=("train.compile=on",)),
}


def trained(folder: Path, settings: list[str]) -> list[dict[str, Any]]:
    """The counts of each step of a run, which has ended and warned of nothing."""
    counts, run = folder / "counts.jsonl", folder / "run"
    script = str(HERE / "counted_run.py")
    done = on_gpu(script, str(counts), "train", "demo", *settings, f"run.dir={run}", **ONLY_RANK, **ZEROS)
    assert f"step {STEPS}/{STEPS}" in done.stdout
    assert "determinis" not in done.stdout + done.stderr
    return [json.loads(line) for line in counts.read_text(encoding="utf-8").splitlines()]


def show(name: str, step: dict[str, Any]) -> None:
    number, passes, rest = step["micro_batches"], step["passes"], step["rest"]
    print(
        f"{name}: {passes['launches'] / number:.0f} launches, {passes['copies'] / number:.0f} copies and "
        f"{passes['waits'] / number:.1f} waits a micro-batch; {rest['launches']} launches, {rest['copies']} "
        f"copies and {rest['waits']} waits in the rest of the step"
    )


@pytest.mark.parametrize("name", CASES)
def test_a_run_ends_within_its_budget(tiny: list[str], tmp_path: Path, name: str) -> None:
    case = CASES[name]
    settings = [*tiny, *QUIET, f"train.precision={case.precision}", f"zero.stage={case.stage}", *case.more]
    steps = trained(tmp_path, settings)
    assert len(steps) == STEPS
    for step in steps[PLAIN]:
        number, passes, rest = step["micro_batches"], step["passes"], step["rest"]
        show(name, step)
        if case.launches:
            assert passes["launches"] <= case.launches * number
            assert passes["waits"] == passes["staged"] == 0
            assert rest["waits"] <= WAITS_A_STEP


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_trains(tiny: list[str], maskmill: Maskmill, tmp_path: Path, objective: str) -> None:
    settings = [*tiny, *member_settings(objective, maskmill, tmp_path), f"data.out={tmp_path}/shards", *QUIET]
    maskmill("prepare", "demo", *settings)
    settings += teacher_settings(settings, tmp_path / "teacher")
    steps = trained(tmp_path, [*settings, "train.precision=bf16", "train.compile=off"])
    for step in steps[PLAIN]:
        show(objective, step)
