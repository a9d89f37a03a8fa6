"""Short runs to the end on the pretended GPU, and what each step of them costs: launches, copies and waits."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
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
STEPS = 7
QUIET = [f"train.steps={STEPS}", "train.log_every=6", "train.checkpoint_every=100", "run.ranks=1"]
"""Step 1 and 6 are logged; the third to fifth do nothing but train."""
PLAIN = slice(2, 5)
ROOM = 1.1
"""How far above the measured launches a run may be: another version of torch has some more or fewer."""


class Case(NamedTuple):
    """A run, eager unless it says otherwise, and what it was measured to take."""

    precision: str
    stage: int
    launches: int
    """In a micro-batch."""
    waits: int
    """In the rest of a step that is not logged. By their Python stacks all are in DeepSpeed's optimizers, which look
    whether gradients and norms are finite, at stage 0 in bf16 and with offload tensor by tensor; but one at stage 0,
    which is ours: the norm that decides whether the step is taken."""
    more: tuple[str, ...] = ("train.compile=off",)
    pass_waits: int = 0
    """In a micro-batch: at stage 3 DeepSpeed's for its stream of reductions, offloaded at stage 2 its look at each
    tensor's gradient in the last micro-batch, whether it is finite."""
    update: int | None = None
    """Launches in the rest of such a step, of tensors in any number."""


EAGER, ADAMW = "train.compile=off", "optim.name=adamw"
CASES = {
    "stage 0, fp32, AdamW": Case("fp32", 0, 405, 1, (EAGER, ADAMW)),
    "stage 1, fp32, LAMB": Case("fp32", 1, 407, 7),  # dense tiles of near-equal lengths, no flash attention
    "stage 0, bf16, LAMB": Case("bf16", 0, 471, 55),
    "stage 1, bf16, LAMB": Case("bf16", 1, 408, 4, update=69),
    "stage 1, fp16, LAMB": Case("fp16", 1, 457, 8),
    "stage 1, fp16, recomputed": Case("fp16", 1, 485, 8, (EAGER, "train.activation_checkpointing=true")),
    "stage 2, fp16, AdamW": Case("fp16", 2, 461, 8, (EAGER, ADAMW)),
    "stage 2, bf16, offloaded": Case("bf16", 2, 676, 53, (EAGER, ADAMW, "zero.offload=cpu"), 16),
    "stage 3, bf16, LAMB": Case("bf16", 3, 442, 4, pass_waits=1),
    "stage 1, bf16, compiled": Case("bf16", 1, 311, 4, ("train.compile=on",), update=69),
    "stage 0, bf16, compiled": Case("bf16", 0, 373, 55, ("train.compile=on",)),
    "stage 2, bf16, compiled": Case("bf16", 2, 364, 8, ("train.compile=on",)),
    "stage 1, fp16, compiled": Case("fp16", 1, 358, 8, ("train.compile=on",)),
    "stage 1, bf16, compiled, recomputed": Case(
        "bf16", 1, 332, 4, ("train.compile=on", "train.activation_checkpointing=true"), update=69
    ),
    "stage 1, bf16, Muon": Case("bf16", 1, 408, 4, (EAGER, "optim.name=muon"), update=337),
    "stage 1, bf16, StableAdamW": Case("bf16", 1, 408, 4, (EAGER, "optim.name=stable_adamw"), update=73),
    "stage 3, bf16, AdamW, recomputed": Case(
        "bf16", 3, 470, 4, (EAGER, ADAMW, "train.activation_checkpointing=true"), 1
    ),
    "stage 3, bf16, AdamW, offloaded": Case("bf16", 3, 504, 13, (EAGER, ADAMW, "zero.offload=cpu"), 1),
}


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
    steps = trained(tmp_path, STEPS, settings)
    assert len(steps) == STEPS
    assert not any(step["cublas_variable"] for step in steps), "torch 2.11 parses it at each product"
    for step in steps[PLAIN]:
        number, passes, rest = step["micro_batches"], step["passes"], step["rest"]
        show(name, step)
        assert passes["launches"] <= ROOM * case.launches * number
        assert passes["waits"] <= case.pass_waits * number
        assert rest["waits"] <= case.waits
        assert case.update is None or rest["launches"] <= ROOM * case.update
        if not case.pass_waits:
            assert passes["staged"] == 0


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_trains(tiny: list[str], maskmill: Maskmill, tmp_path: Path, objective: str) -> None:
    settings = [*tiny, *member_settings(objective, maskmill, tmp_path), f"data.out={tmp_path}/shards", *QUIET]
    maskmill("prepare", "demo", *settings)
    settings += teacher_settings(settings, tmp_path / "teacher")
    steps = trained(tmp_path, STEPS, [*settings, "train.precision=bf16", "train.compile=off"])
    for step in steps[PLAIN]:
        show(objective, step)
